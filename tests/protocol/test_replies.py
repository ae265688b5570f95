"""One client lies or errs, in any step of any method: it fails alone and by name, in any order of replies."""

import re
import warnings
from dataclasses import dataclass
from threading import get_ident

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram.core.errors import ClientFailed, MissingClients, RankDeficient, RefusedMessage
from fedgram.protocol import replies
from fedgram.protocol.replies import (
    ByClass,
    Either,
    Judgement,
    LabelCounts,
    ListOf,
    MomentsOf,
    Number,
    Numbers,
    Question,
    Text,
)
from support.lying import Spoiled, clients, quick


def moments(d=64, classes=10, **options):
    rng = np.random.default_rng(0)
    return fg.Moments.of(rng.normal(size=(30, d)), np.arange(30) % classes, classes=classes, **options)


LIES = {
    "nothing": None,
    "number": 5,
    "text": "a",
    "true": True,
    "dict": {},
    "list": [],
    "odd dict": {"n": None, "shape": None, "moments": 1, "gradient": 2, "features": 3},
    "array": np.ones((2, 3)),
    "long array": np.ones(100_000, np.float32),
    "model": fg.LinearModel(np.ones((64, 10)), tuple(range(10))),
    "moments of another dimension": moments(d=7),
    "moments of other classes": moments(classes=7),
    "moments of other features": moments(features="lite0:96"),
    "moments of others' samples": moments(),
}


def asked(method, monkeypatch):
    """Return the checks of an honest run on the first client's whole replies, each as (kind, question)."""
    seen, check, here = {}, replies.check, get_ident()

    def watching(value, kind, question, where="reply"):
        check(value, kind, question, where)
        if where == "reply" and question.client == "client-0" and get_ident() == here:
            seen.setdefault((repr(value), repr(kind)), (kind, question))

    with monkeypatch.context() as patch:
        patch.setattr(replies, "check", watching)
        method.fit(clients(method), engine=Spoiled("", None), **checks.options_of(method))
    return list(seen.values())


def may_be(lie, kind, question):
    """Return whether an honest client may send this: nothing, or the number of samples that it gets right."""
    if isinstance(kind, Either):
        return may_be(lie, kind.one, question) or may_be(lie, kind.other, question)
    counted = isinstance(kind, Judgement) and question.targets.has_classes
    return (kind is None and lie is None) or (counted and type(lie) is int)


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
@pytest.mark.parametrize("name", sorted(fg.registry))
def test_every_step_of_every_method_tells_lies_from_replies(name, monkeypatch):
    checked = asked(quick(name), monkeypatch)
    assert checked
    for kind, question in checked:
        for lie in LIES.values():
            if may_be(lie, kind, question):
                replies.check(lie, kind, question)
                continue
            with pytest.raises(RefusedMessage, match="^reply.* must be"):
                replies.check(lie, kind, question)


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("afl", "hello"),
        ("afl", "summarize"),
        ("afl", "receive"),
        ("fedhip", "personalize"),
        ("apfl", "summarize"),
        ("fedgram", "summarize"),
        ("fedlogit", "gradient"),
        ("fedacnnl", "summarize"),
        ("pfedacnnl", "describe"),
        ("fedavg", "train"),
        ("fedapa", "train"),
        ("fedproto", "train"),
        ("feddbe", "meet"),
    ],
)
@pytest.mark.parametrize("what", ["odd dict", "moments of another dimension"])
def test_whatever_one_client_replies_the_others_go_on(name, step, what):
    fit = quick(name).fit(clients(), classes=10, engine=Spoiled(step, LIES[what]), require=3)
    assert (fit.absent | fit.lost)["client-0"].startswith(f"step '{step}': reply")
    assert fit.evaluation.tested.keys() == {"client-1", "client-2", "client-3"}
    if step in ("hello", "summarize") and name in ("afl", "fedhip", "fedgram"):
        honest = quick(name).fit(clients()[1:], classes=10)
        np.testing.assert_allclose(fit.model.weights, honest.model.weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "lie",
    [
        lambda hello: hello | {"n": -5},
        lambda hello: hello | {"n": 2**60},
        lambda hello: hello | {"n": True},
        lambda hello: hello | {"tested": -1},
        lambda hello: hello | {"tested": 1.5},
        lambda hello: hello | {"shape": None},
        lambda hello: hello | {"shape": [-3]},
        lambda hello: hello | {"shape": ["a"]},
        lambda hello: hello | {"features": 7},
        lambda hello: hello | {"features": "x" * 10_000},
        lambda hello: hello | {"kind": "pictures as"},
        lambda hello: hello | {"labels": "abc"},
        lambda hello: hello | {"labels": [None]},
        lambda hello: hello | {"labels": None},  # classes were not given
        lambda hello: hello | {"labels": []},
        lambda hello: hello | {"labels": ["a", "b"]},  # where they are numbers
        lambda hello: hello | {"labels": [0, ""]},
        lambda hello: hello | {"labels": list(range(2000))},  # more than it has samples
        lambda hello: hello | {"shape": []},
        lambda hello: hello | {"more": 1},
        lambda hello: {key: hello[key] for key in ("n", "shape")},
        lambda hello: hello | {"n": hello["n"] + 7},  # detected when its moments arrive
    ],
)
def test_a_lie_about_oneself_is_found_out(lie):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        fit = fg.AFL().fit(clients(), engine=Spoiled("hello", lie), require=3)
        honest = fg.AFL().fit(clients()[1:], classes=fit.model.classes)
    assert fit.absent.keys() == {"client-0"}
    np.testing.assert_allclose(fit.model.weights, honest.model.weights, rtol=1e-9, atol=1e-12)


def test_labels_are_of_the_kind_that_a_client_says():
    named = [fg.Client(c.name, c.x, np.array([f"digit {label}" for label in c.y])) for c in clients()]
    for lie in ([1, 2], ["digit 0", 0]):
        spoiled = Spoiled("hello", lambda hello, lie=lie: hello | {"labels": lie})
        fit = fg.AFL(ri=False, gamma=1.0).fit(named, engine=spoiled, require=3)
        assert re.search(r"names as labels, and lists \d$", fit.absent["client-0"])
        assert len(fit.model.classes) == 10


def test_one_of_two_sends_moments_with_a_bias_that_its_step_has_not():
    def biased(own):
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(10), own.counts)
        return fg.Moments.of(rng.normal(size=(own.n, own.d)), y, classes=10, bias=True)

    fit = fg.AFL(ri=False, gamma=1.0).fit(clients()[:2], classes=10, engine=Spoiled("summarize", biased), require=1)
    assert fit.absent == {"client-0": "step 'summarize': reply must be moments of bias False, got moments of bias True"}


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
@pytest.mark.parametrize("lie", ["a", 10**9, -1, True, 2.0, {}, [1], np.ones(3), moments()])
def test_no_client_claims_more_than_it_has_tested(lie):
    fit = fg.AFL().fit(clients(), classes=10, engine=Spoiled("evaluate", lie))
    assert fit.evaluation.failed.keys() == {"client-0"}
    assert fit.evaluation.untested == 1
    assert 0 <= fit.evaluation.pooled <= 1


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
def test_without_a_quorum_the_error_names_the_one_who_lied():
    for bad in ("client-0", "client-2"):
        with pytest.raises(ClientFailed, match=f"^step 'summarize': client '{bad}': reply must be moments, got 5$"):
            fg.AFL().fit(clients(), classes=10, engine=Spoiled("summarize", 5, bad))
    with pytest.raises(MissingClients, match="3 clients left, 4 required; client 'client-0'"):
        fg.AFL().fit(clients(), classes=10, engine=Spoiled("summarize", 5), require=4)


@dataclass(frozen=True, kw_only=True)
class Undeclared(fg.Method):
    """Says nothing about its replies."""

    def serve(self, clients):
        total = clients.sum(self.give)
        mean = clients.mean(self.give)
        assert total["w"].shape == mean["w"].shape == (2,)
        return fg.LinearModel(np.zeros((64, 10)), clients.classes)

    @fg.step
    def give(self, client):
        return {"w": np.ones(2), "n": [1.0]}


@pytest.mark.parametrize("lie", [*LIES.values(), {"w": np.ones(3), "n": [1.0]}, {"w": np.ones((2, 1)), "n": [1.0]}])
@pytest.mark.parametrize("bad", ["client-0", "client-3"])
def test_where_nothing_is_declared_most_clients_decide(lie, bad):
    fit = Undeclared().fit(clients(), classes=10, engine=Spoiled("give", lie, bad), require=3)
    assert fit.absent.keys() == {bad}
    assert len(fit.contributors) == 3


def test_a_reply_of_many_fields_does_not_fill_the_report():
    lie = {f"field {k}": 1.0 for k in range(10_000)}
    fit = Undeclared().fit(clients(), classes=10, engine=Spoiled("give", lie), require=3)
    assert len(fit.absent["client-0"]) < 500


def test_a_tie_has_no_winner():
    with pytest.raises(ClientFailed, match="client 'client-0': replied with .*, and no form is the most frequent"):
        Undeclared().fit(clients()[:2], classes=10, engine=Spoiled("give", {"w": np.ones(3), "n": [1.0]}))


def test_replies_that_are_not_finite_are_refused_in_process_too():
    @dataclass(frozen=True, kw_only=True)
    class Diverging(Undeclared):
        """One client's training has diverged."""

        @fg.step
        def give(self, client):
            return {"w": np.full(2, np.nan if client.name == "client-1" else 1.0), "n": [1.0]}

    with pytest.raises(ClientFailed, match="'client-1': field 'w' is nan"):
        Diverging().fit(clients(), classes=10)
    assert Diverging().fit(clients(), classes=10, require=3).absent.keys() == {"client-1"}


def test_contributors_absent_and_lost():
    @dataclass(frozen=True, kw_only=True)
    class Fading(fg.AFL):
        """One client contributes and cannot take the model, another never contributes."""

        @fg.step
        def receive(self, client, model):
            if client.name == "client-1":
                raise OSError("gone")

        @fg.step
        def summarize(self, client):
            if client.name == "client-2":
                raise OSError("never there")
            return super().summarize(client)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficient)
        fit = Fading().fit(clients(), classes=10, require=2)
    assert fit.contributors == ("client-0", "client-1", "client-3")
    assert fit.absent.keys() == {"client-2"}
    assert fit.lost.keys() == {"client-1"}


BY_CLASS = ByClass({"m": Numbers((3,))})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (None, 0),
        (Numbers((2,)), np.ones(3)),
        (Numbers((2,)), np.ones(2, np.float32)),
        (Numbers((2,)), [1.0, 1.0]),
        (Numbers((2,), "int64", 0, 5), np.array([0, 6])),
        (Number(0, 1), 1.5),
        (Number(0, 1), None),
        (Number(0, 9, whole=True), 2.0),
        (Number(0, 9, whole=True), True),
        (Text(3), "abcd"),
        (Text(choices=("a",)), "b"),
        (ListOf(Number(), 2), [1, 2, 3]),
        (ListOf(Number(), 2), ["a"]),
        (Either(None, Number()), "a"),
        (MomentsOf(), 1),
        (LabelCounts(), np.array([2, 2])),  # of five samples
        (LabelCounts(), np.array([6, -1])),
        (LabelCounts(), np.array([2.0, 3.0])),
        ({"a": Number()}, {"a": 1, "b": 2}),
        ({"a": Number()}, {}),
        ([Number(), Number()], [1]),
        (np.zeros(3), np.zeros(4)),
        (BY_CLASS, {"classes": np.array([0, 1], np.int32)}),
        (BY_CLASS, {"classes": [0], "m": np.ones((1, 3))}),
        (BY_CLASS, {"classes": np.array([[0]], np.int32), "m": np.ones((1, 3))}),
        (BY_CLASS, {"classes": np.array([0], np.int64), "m": np.ones((1, 3))}),
        (BY_CLASS, {"classes": np.array([2], np.int32), "m": np.ones((1, 3))}),
        (BY_CLASS, {"classes": np.array([1, 0], np.int32), "m": np.ones((2, 3))}),
        (BY_CLASS, {"classes": np.array([1, 1], np.int32), "m": np.ones((2, 3))}),
        (BY_CLASS, {"classes": np.array([0, 1], np.int32), "m": np.ones((1, 3))}),
        (BY_CLASS, {"classes": np.array([], np.int32), "m": np.ones((0, 3))}),
    ],
)
def test_what_is_of_another_kind_is_refused(kind, value):
    question = Question("c", None, 0, (0, 1), (3,), "", 5, 5)
    with pytest.raises(RefusedMessage, match="^reply.* must be"):
        replies.check(value, kind, question)


def test_rows_by_class_are_those_of_the_classes_that_a_client_has():
    question = Question("c", None, 0, (0, 1), (3,), "", 5, 5)
    for classes in ([0], [1], [0, 1]):
        replies.check({"classes": np.array(classes, np.int32), "m": np.ones((len(classes), 3))}, BY_CLASS, question)


def test_overriding_a_step_keeps_what_is_declared_for_it():
    class Own(fg.FedLogit):
        @fg.step
        def gradient(self, client, model):
            return 5

    assert replies.expected(Own, "gradient") is replies.expected(fg.FedLogit, "gradient")
    assert replies.expected(Own, "personalize") is None
    assert isinstance(replies.expected(fg.AFL, "summarize"), MomentsOf)
