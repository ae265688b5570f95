"""Runs on secure sums: the plain result, from messages that tell the server nothing but sums."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import ClientFailed, FedgramError, InvalidParameter, RefusedMessage
from fedgram.core.fixed_point import Fixed
from fedgram.engines import inprocess
from fedgram.experiments.results import recorded_evaluation
from fedgram.models import LinearModel
from fedgram.moments.targets import ClassTargets
from fedgram.protocol.clientside import ClientSide, perform
from fedgram.protocol.fit import load
from fedgram.protocol.masking import REFUSALS, MaskingClient, evaluation_sums
from fedgram.protocol.replies import ByClass, Number, Numbers
from fedgram.secure import secure_sums
from fedgram.studies import Study, kinds
from fedgram.studies.encoding import as_client
from support.campaign import examples

PARTIES, D, C = 5, 6, 3


def federation(seed=0, sizes=(30, 12, 40, 25, 18), tested=(10, 4, 9, 8, 7), d=D, c=C):
    rng = np.random.default_rng(seed)
    centres, found = rng.normal(size=(c, d)), []
    for k, (n, m) in enumerate(zip(sizes, tested, strict=True)):
        y = rng.integers(0, c, n + m)
        x = centres[y] + rng.normal(size=(n + m, d)) + 0.3 * k
        test = {"x_test": x[n:], "y_test": y[n:]} if m else {}
        found.append(fg.Client(f"site-{k}", x[:n], y[:n], **test))
    return found


CLIENTS = federation()


def fitted(method, clients=CLIENTS, secure=None, **options):
    return method.fit(clients, **{"classes": C, "secure": secure, **options})


def both(method, clients=CLIENTS, witnesses=None, **options):
    return fitted(method, clients, **options), fitted(method, clients, witnesses or fg.Witnesses(2), **options)


def numbers(model):
    """Return a model's numbers as a vector."""
    arrays = [wire.encode(model)] if model is None else _arrays(wire.to_tree, model)
    return np.concatenate([np.ravel(array).astype(np.float64) for array in arrays])


def _arrays(to_tree, model):
    found = {}
    to_tree(model, "", found)
    return found.values()


def apart(one, other):
    """Return the largest difference of two models, relative to the largest number."""
    if one is None:
        assert other is None
        return 0.0
    one, other = numbers(one), numbers(other)
    return float(np.abs(one - other).max() / np.abs(one).max())


@pytest.mark.parametrize(
    "method",
    [fg.AFL(), fg.FedHiP(), fg.APFL(gamma=1.0), fg.FedGram(), fg.FedLogit(rounds=5), fg.FedLogit(ridge=0.1, rounds=3)],
    ids=lambda method: f"{method.name}-{method.settings().get('ridge', '')}",
)
@pytest.mark.parametrize("witnesses", [fg.Witnesses(1), fg.Witnesses(3, needed=2)], ids=["one", "two of three"])
def test_sums_alone_give_the_plain_model(method, witnesses):
    plain, secure = both(method, witnesses=witnesses)
    # A thousand random features of a hundred samples amplify rounding.
    assert apart(plain.model, secure.model) < (1e-10 if method.name == "apfl" else 1e-12)
    assert secure.contributors == plain.contributors
    for name, model in plain.personal.items():
        assert apart(model, secure.personal[name]) < 1e-9  # choices among own samples amplify rounding
    assert secure.notes["secure"] == {
        "witnesses": witnesses.count,
        "needed": witnesses.needed or witnesses.count,
        "minimum_parties": 3,
    }


@given(st.integers(0, 2**32), st.lists(st.integers(4, 40), min_size=3, max_size=7))
@examples(10)
def test_any_partition_gives_the_plain_model(seed, sizes):
    clients = federation(seed, sizes, [0] * len(sizes), d=3, c=2)
    plain, secure = both(fg.FedHiP(alpha=1.0), clients, classes=2)
    assert apart(plain.model, secure.model) < 1e-9
    for name, model in plain.personal.items():
        assert apart(model, secure.personal[name]) < 1e-9


def test_rounds_of_logistic_ascent_agree_one_by_one():
    for rounds in range(1, 5):
        plain, secure = both(fg.FedLogit(rounds=rounds))
        assert apart(plain.model, secure.model) < 1e-12
        assert len(secure.rounds) == len(plain.rounds) == rounds


def settings_of(cls):
    quick = dict(cls.quick)
    return {
        **quick,
        **({"rounds": min(quick["rounds"], 2)} if "rounds" in quick else {}),
        **({"epochs": 2} if "epochs" in quick else {}),
    }


ADDING = sorted(name for name in fg.registry if fg.registry[name].adds)
OTHERS = sorted(name for name in fg.registry if not fg.registry[name].adds)


@pytest.mark.parametrize("name", ADDING)
def test_every_method_that_adds_gives_the_plain_result(name):
    pytest.importorskip("torch")
    method = fg.registry[name](**settings_of(fg.registry[name]))
    plain, secure = both(method, replace_features(CLIENTS, method))
    assert apart(plain.model, secure.model) < 10 * method.rounding
    assert plain.personal.keys() == secure.personal.keys()
    assert len(plain.rounds) == len(secure.rounds)


def replace_features(clients, method):
    """Return the clients with numbers of the precision that a method computes with."""
    dtype = np.float32 if hasattr(method, "network") else np.float64
    return [
        replace(client, x=client.x.astype(dtype), x_test=None if client.x_test is None else client.x_test.astype(dtype))
        for client in clients
    ]


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_that_reads_single_replies_is_refused_before_anything_is_sent(name, monkeypatch):
    method = fg.registry[name](**settings_of(fg.registry[name]))
    sent = spied(monkeypatch)
    with pytest.raises(
        InvalidParameter, match=f"secure: .* got {name.replace('+', '.')}, which needs each client's reply to '"
    ):
        fitted(method, secure=fg.Witnesses(2))
    assert not sent
    # The declaration is needed: without it the method is refused on the way.
    if name != "fedas":
        monkeypatch.setattr(type(method), "adds", True)
        with pytest.raises(FedgramError):
            fitted(method, replace_features(CLIENTS, method), fg.Witnesses(2))


def test_sums_over_a_share_of_the_clients_are_refused_before_anything_is_sent(monkeypatch):
    sent = spied(monkeypatch)
    with pytest.raises(InvalidParameter, match="participation: expected 1 with secure sums, got 0.5"):
        fitted(fg.FedAvg(participation=0.5), secure=fg.Witnesses(2))
    assert not sent


# What leaves a client.
def spied(monkeypatch):
    """Return a list of all that clients of a run in this process send, as pairs of a step and bytes or an error."""
    sent, replies = [], inprocess.Room._replies

    def spy(room, group):
        found = replies(room, group)
        sent.extend((request["step"], answer) for (_, request), (_, answer) in zip(group, found, strict=True))
        return found

    monkeypatch.setattr(inprocess.Room, "_replies", spy)
    return sent


def p_value(data):
    counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
    return chi2.sf(float(((counts - counts.mean()) ** 2 / counts.mean()).sum()), 255)


@pytest.mark.parametrize("method", [fg.FedGram(), fg.FedLogit(rounds=2)], ids=lambda method: method.name)
def test_every_byte_that_leaves_a_client_is_accounted_for(method, monkeypatch):
    """Two federations of the same shapes, with other data, send messages of which only the masked part differs."""
    seen = []
    for clients in (CLIENTS, federation(1, (3, 50, 9, 20, 7), (2, 2, 30, 3, 1))):
        sent = spied(monkeypatch)
        fitted(method, clients, fg.Witnesses(2))
        monkeypatch.undo()
        plain, masked = [], []
        for step, data in sent:
            assert isinstance(data, bytes)
            payload = wire.decode(data)
            if isinstance(payload, dict) and payload.keys() == {"upload"}:
                masked.append(payload["upload"].tobytes())
                payload = len(masked[-1])
            plain.append((step, payload))
        hellos = [payload for step, payload in plain if step == "hello"]
        assert hellos == [hellos[0]] * len(clients)
        assert {step for step, payload in plain if payload is None} <= {"personalize", "receive"}
        assert all(payload is None or step == "hello" or type(payload) is int for step, payload in plain)
        assert p_value(b"".join(masked)) > 1e-9
        seen.append(plain)
    told = [[payload for _, payload in plain if not isinstance(payload, int)] for plain in seen]
    assert told[0] == told[1]
    # Lengths differ by a version's or a name's length at most, which is the same for both.
    assert [step for step, _ in seen[0]] == [step for step, _ in seen[1]]
    assert [size for _, size in seen[0]] == [size for _, size in seen[1]]


def test_a_client_refuses_a_request_for_a_plain_reply():
    _, parties = fg.Witnesses(2).begin("study", [client.name for client in CLIENTS])
    side = ClientSide(CLIENTS[0], classes=(0, 1, 2))
    client = MaskingClient(parties["site-0"], side, PARTIES)
    request = {"step": "summarize", "round": 0, "payload": None}
    with pytest.raises(RefusedMessage, match="expected one for a masked reply, got one for a plain reply"):
        client.sent(fg.FedHiP(), request, fg.FedHiP().summarize(side), "")
    with pytest.raises(RefusedMessage, match="for a plain reply"):
        client.sent(fg.FedHiP(), {**request, "step": "evaluate"}, {"squared": 1.0}, "")
    hello = fg.FedHiP().hello(side)
    with pytest.raises(InvalidParameter, match="a reply that may have any"):
        client.sent(fg.FedHiP(), {**request, "step": "hello", "secure": {"weighted": False}}, hello, "")


@pytest.mark.parametrize(
    ("method", "step", "payload"),
    [
        (fg.FedHiP(), "summarize", None),
        (fg.APFL(gamma=1.0), "column_sums", None),
        (fg.FedLogit(), "gradient", {"model": LinearModel(np.zeros((D, C)), (0, 1, 2), np.zeros(C)), "leverage": 0.0}),
        (fg.FedLogit(), "evaluate", LinearModel(np.zeros((D, C)), (0, 1, 2), np.zeros(C))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_client_refuses_weights_for_sums_over_samples(method, step, payload):
    """Two sums under different weights are two equations for what only two of the clients have."""
    _, parties = fg.Witnesses(1).begin("study", [client.name for client in CLIENTS])
    side = ClientSide(CLIENTS[0], classes=(0, 1, 2))
    client = MaskingClient(parties["site-0"], side, PARTIES)
    secure = {"run": "run", "number": 0, "count": 1, "weighted": True}
    request = {"step": step, "payload": payload, "round": 0, "seed": 0, "classes": None, "secure": secure}
    [reply] = perform(method, [side], [request])
    with pytest.raises(RefusedMessage, match="weighted: expected no weights for sums over samples"):
        client.sent(method, request, reply, "")


def received(monkeypatch):
    """Return what a coordinator decrypts of each party's upload, by party, in the order of requests."""
    found, add = {}, secure_sums.Collected.add

    def spy(collected, party, upload):
        before = collected.hidden
        add(collected, party, upload)
        found.setdefault(party, []).append(collected.hidden - before)

    monkeypatch.setattr(secure_sums.Collected, "add", spy)
    return found


def test_a_party_of_one_sample_shows_its_row_in_a_plain_upload_and_noise_in_a_masked_one(monkeypatch):
    clients = federation(0, (1, 30, 40, 25, 18), (0,) * 5, d=40)
    row = clients[0].x[0]
    plain = ClientSide(clients[0], classes=(0, 1, 2)).moments()
    assert np.allclose(plain.cross.sum(axis=1), row)  # the class sum of one sample is the sample
    seen = received(monkeypatch)
    fitted(fg.FedGram(), clients, fg.Witnesses(2))
    [upload] = seen["site-0"]
    assert p_value(upload.high.tobytes() + upload.low.tobytes()) > 1e-9
    exact = Fixed.of(plain.cross.T.ravel())
    assert p_value(exact.high.tobytes() + exact.low.tobytes()) < 1e-9  # the test would notice it


def test_a_group_of_one_patient_shows_in_a_plain_gram_matrix_and_not_in_a_masked_one(monkeypatch):
    """A column that is 1 for one patient has that patient's row as its row of the Gram matrix."""
    clients = federation(0, (30, 12, 40, 25, 18), (0,) * 5)
    x = np.column_stack([clients[0].x, np.arange(30) == 7])
    clients = [replace(clients[0], x=x)] + [
        replace(client, x=np.column_stack([client.x, np.arange(len(client.x)) % 2])) for client in clients[1:]
    ]
    moments = [ClientSide(client, classes=(0, 1, 2)).moments() for client in clients]
    assert np.allclose(moments[0].gram[-1], x[7])
    sums = []
    monkeypatch.setattr(
        fg.FedGram,
        "publish",
        lambda self, pool, publish=fg.FedGram.publish: sums.append(pool.sent) or publish(self, pool),
    )
    seen = received(monkeypatch)
    fitted(fg.FedGram(), clients, fg.Witnesses(2))
    assert np.allclose(sums[0].gram, sum(part.gram for part in moments))
    assert not np.allclose(sums[0].gram[-1], x[7])
    assert np.abs(seen["site-0"][0].floats()).max() > 1e15  # of masks, which fill all bits


def test_the_fit_of_a_secure_run_tells_nothing_of_single_clients():
    secure = fitted(fg.FedGram(), secure=fg.Witnesses(2))
    assert secure.sites is None
    assert secure.contributions is None
    assert set(secure.evaluation.tested) == {"all clients"}
    report = secure.report()
    assert "validation" not in report
    assert report["secure"]["witnesses"] == 2
    with pytest.raises(FedgramError, match="of secure sums, which show no single client"):
        secure.remove(secure.summarize(CLIENTS[0]), name="site-0")
    # Personal models need the published message alone.
    assert apart(secure.personalize(CLIENTS[1]), secure.personal["site-1"]) < 1e-9


# Evaluation.
def test_an_evaluation_has_the_pooled_accuracy_and_a_mean_in_whole_percent(tmp_path):
    plain, secure = (fit.evaluation for fit in both(fg.FedGram()))
    assert secure.pooled == plain.pooled
    assert abs(secure.client_mean - plain.client_mean) <= 0.005
    assert isnan(secure.worst_decile)
    assert secure.probabilities.samples == plain.probabilities.samples
    assert secure.probabilities.brier == pytest.approx(plain.probabilities.brier, rel=1e-12)
    assert secure.summary().keys() == {"client_mean", "pooled"}
    assert secure.summed.clients == PARTIES
    assert secure.by_client == {"all clients": plain.pooled}


def test_a_saved_fit_keeps_the_sums(tmp_path):
    secure = fitted(fg.FedLogit(rounds=2), secure=fg.Witnesses(2))
    secure.save(tmp_path / "fit")
    found = load(tmp_path / "fit")
    assert found.evaluation == secure.evaluation
    assert found.rounds == secure.rounds
    assert found.report() == secure.report()
    recorded = recorded_evaluation(found.evaluation, [client.name for client in CLIENTS], {})
    assert recorded["accuracy"] == secure.evaluation.summary()


def test_clients_without_test_samples_send_no_evaluation(monkeypatch):
    sent = spied(monkeypatch)
    secure = fitted(fg.FedGram(), federation(0, tested=(10, 0, 9, 8, 0)), fg.Witnesses(2))
    assert (secure.evaluation.summed.clients, secure.evaluation.untested) == (3, 2)
    assert sum(step == "evaluate" for step, _ in sent) == 3


def test_too_few_clients_with_test_samples_are_not_evaluated(monkeypatch):
    sent = spied(monkeypatch)
    assert fitted(fg.FedGram(), federation(0, tested=(10, 0, 9, 0, 0)), fg.Witnesses(2)).evaluation == fg.Evaluation()
    assert not any(step == "evaluate" for step, _ in sent)


def test_clients_without_samples_are_left_out_and_get_the_model():
    clients = federation(0, sizes=(30, 0, 40, 25, 18), tested=(0,) * 5)
    plain, secure = both(fg.AFL(), clients)
    assert secure.contributors == plain.contributors == ("site-0", "site-2", "site-3", "site-4")
    assert apart(plain.model, secure.model) < 1e-12


def test_a_sum_of_accuracies_with_all_their_digits_could_be_taken_apart():
    """Continued fractions find the sum's denominator, and each client's numerator follows from its remainder.

    So clients send whole percents.
    """
    right, tested = [61, 83, 40], [67, 97, 101]
    exact = sum(round(Fraction(r, n) * 2**64) for r, n in zip(right, tested, strict=True))
    found = Fraction(exact, 2**64).limit_denominator(2**30)
    assert found.denominator == 67 * 97 * 101
    told = []
    for n in tested:  # the prime factors of the denominator
        others = found.denominator // n
        told.append(found.numerator * pow(others, -1, n) % n)
    assert told == right
    sums = [{"right": np.array([r, 0]), "samples": np.array([n, 0])} for r, n in zip(right, tested, strict=True)]
    percents = [evaluation_sums(ClassTargets((0, 1)), s, n)["accuracy"] for s, n in zip(sums, tested, strict=True)]
    assert percents == [91, 86, 40]


# Numeric outcomes, and studies.
COSTS = Study("costs", "cost", {"age": kinds.Number(range=(0, 120)), "cost": kinds.Number(range=(0, 100))})


def study_clients(study, count=4):
    rng = np.random.default_rng(0)
    found = []
    for k in range(count):
        rows = rng.uniform(-1, 1, size=(30, 2))
        rows[:, 1] = 0.5 * rows[:, 0] + 0.1 * rows[:, 1]
        labels = np.zeros(20, dtype=np.int64)
        found.append(as_client(study, f"client-{k}", rows[:20], labels, x_test=rows[20:], y_test=labels[:10]))
    return found


@pytest.mark.parametrize("method", [fg.FedGram(), fg.FedHiP(), fg.Local()], ids=lambda method: method.name)
def test_numeric_outcomes_of_a_study(method):
    clients = study_clients(COSTS)
    plain, secure = (method.fit(clients, study=COSTS, secure=witnesses) for witnesses in (None, fg.Witnesses(2)))
    assert apart(plain.model, secure.model) < 1e-12
    [one], [other] = plain.evaluation.pooled.values(), secure.evaluation.pooled.values()
    for measure in ("rmse", "mae", "r2"):
        assert getattr(other, measure) == pytest.approx(getattr(one, measure), rel=1e-9)
    assert secure.report()["errors"].keys() == {"cost"}


# Refusals.
def test_classes_must_be_given():
    with pytest.raises(InvalidParameter, match="classes: expected names or a number, got none"):
        fitted(fg.FedGram(), secure=fg.Witnesses(2), classes=None)


def test_too_few_clients_are_refused():
    with pytest.raises(InvalidParameter, match="parties: expected at least 3, got 2"):
        fitted(fg.FedGram(), CLIENTS[:2], fg.Witnesses(2))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"count": 0}, "count: expected a whole number ≥ 1"),
        ({"count": 6}, "witnesses: expected 1 to 5"),
        ({"count": 3, "needed": 1}, "needed: expected more than half"),
        ({"count": 2, "minimum_parties": 2}, "minimum_parties: expected at least 3"),
        ({"count": 2.5}, "count: expected a whole number"),
        ({"count": 2, "needed": "two"}, "needed: expected a whole number"),
    ],
)
def test_witnesses_that_cannot_be_are_refused(settings, why):
    with pytest.raises(FedgramError, match=why):
        fg.Witnesses(**settings)


def test_a_checkpoint_and_another_engine_are_refused(tmp_path):
    with pytest.raises(InvalidParameter, match="checkpoint: expected none with secure sums"):
        fitted(fg.FedAvg(), secure=fg.Witnesses(2), engine=fg.InProcess(checkpoint=tmp_path / "state"))

    with pytest.raises(InvalidParameter, match=r"secure: expected witnesses such as fg.Witnesses\(2\), got 2"):
        fitted(fg.FedGram(), secure=2)

    class Other:
        pass

    with pytest.raises(InvalidParameter, match="secure: expected the engine 'inprocess', got Other"):
        fitted(fg.FedGram(), secure=fg.Witnesses(2), engine=Other())


@dataclass(frozen=True, kw_only=True)
class Means(fg.Method):
    """The mean of the clients' features, over some rounds; a client fails in a round, with its data in the error."""

    adds = True

    rounds: int = 2
    failing: str = ""

    def serve(self, clients):
        for _ in clients.rounds_of(self.rounds):
            clients.sum(self.total, {"round": clients.round})

    @fg.step(reply=lambda method, question: {"n": Number(0, 10**6, whole=True)})
    def total(self, client, payload):
        if client.name == self.failing and payload["round"]:
            raise fg.errors.InvalidData(f"row 3 of patient W1000 is {client.x[3]}")
        return {"n": client.n}


def test_a_client_that_fails_in_a_later_round_ends_the_run_and_tells_none_of_its_data():
    assert fitted(Means(), secure=fg.Witnesses(2)).contributors
    with pytest.raises(ClientFailed, match="client 'site-2': its data cannot be used") as failed:
        fitted(Means(failing="site-2"), secure=fg.Witnesses(2))
    assert "W1000" not in str(failed.value)
    # Where not all must take part, the witnesses refuse the sum of the others: the difference is the client's.
    with pytest.raises(RefusedMessage, match="at least 3 in each group that sums tell apart, got 1"):
        fitted(Means(failing="site-2"), secure=fg.Witnesses(2), require=0.5)


def test_a_sum_over_some_of_the_clients_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Some(Means):
        chosen: int = 0

        def serve(self, clients):
            clients.sum(self.total, {"round": 0}, to=clients.names[: self.chosen])

    for chosen in (0, 4):
        with pytest.raises(InvalidParameter, match="a reply of some of the clients to 'total'"):
            fitted(Some(chosen=chosen), secure=fg.Witnesses(2))
    assert fitted(Some(chosen=5), secure=fg.Witnesses(2)).contributors


def test_a_reply_that_its_step_does_not_allow_is_refused_by_the_client():
    @dataclass(frozen=True, kw_only=True)
    class Lying(Means):
        @fg.step(reply=Number(0, 1, whole=True))
        def total(self, client, payload):
            return client.n

    with pytest.raises(ClientFailed, match="it refuses the request"):
        fitted(Lying(), secure=fg.Witnesses(2))


def test_steps_without_a_form_or_with_one_that_depends_on_data_are_refused(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Undeclared(fg.Method):
        adds = True

        def serve(self, clients):
            clients.sum(self.total)

        @fg.step
        def total(self, client):
            return client.x.sum(axis=0)

    @dataclass(frozen=True, kw_only=True)
    class Varying(Undeclared):
        @fg.step(reply=ByClass({"sums": Numbers((D,))}))
        def total(self, client):
            return {}

    sent = spied(monkeypatch)
    with pytest.raises(InvalidParameter, match="got 'total' of undeclared; give @step"):
        fitted(Undeclared(), secure=fg.Witnesses(2))
    assert not sent
    with pytest.raises(InvalidParameter, match="reply to 'total': expected numbers whose form is the same"):
        fitted(Varying(), secure=fg.Witnesses(2))


def test_errors_of_clients_are_from_a_fixed_list():
    assert all(len(text) < 60 and "{" not in text for text in REFUSALS.values())


def test_the_regression_table_needs_the_total_alone():
    clients = study_clients(COSTS)
    plain, secure = (
        fg.AFL().fit(clients, study=COSTS, secure=witnesses).coefficients() for witnesses in (None, fg.Witnesses(2))
    )
    for one, other in zip(plain.rows, secure.rows, strict=True):
        assert other.term == one.term
        assert (other.estimate, other.se) == pytest.approx((one.estimate, one.se), rel=1e-9)
