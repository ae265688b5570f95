"""A store's publication equals the method's fit on the same rows in one process."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.classes import NUMERIC
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, Revealing
from fedgram.exchange.format import fgm
from fedgram.exchange.pages.passport import reveals
from fedgram.exchange.pages.store_status import status, status_page
from fedgram.exchange.rounds.round_server import Asked, advance, waited_for
from fedgram.exchange.store.publishing import validate
from fedgram.exchange.store.study_store import Store
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.sites import validate_sites
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Number
from fedgram.studies.study import Study
from studies.test_basis import Table
from support.stores import KEYS, STUDY, answered, client, store_of, summary

NAMES = ("north", "south", "east")
METHODS = [fg.AFL(), fg.AFL(ri=False), fg.FedHiP(), fg.FedHiP(beta=1.0, intercept=False), fg.FedGram()]


def same_model(fit, wanted):
    x = np.concatenate([client(name).x for name in NAMES])
    np.testing.assert_allclose(fit.model.scores(x), wanted.model.scores(x), rtol=1e-9, atol=1e-9)
    assert fit.contributors == wanted.contributors
    newcomer = client("west", seed=9)
    for party in (client("north"), newcomer):
        own, other = fit.personalize(party), wanted.personalize(party)
        np.testing.assert_allclose(own.scores(x), other.scores(x), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{method.settings()}"[:40])
def test_publications_are_the_fits_of_the_same_rows(tmp_path, method):
    store = store_of(tmp_path, *NAMES)
    published = store.publish(method.name, **method.settings())
    fit = fgm.read(published.data).of_kind("global").holding(fg.Fit)
    assert fit.total is None
    same_model(fit, method.fit([client(name) for name in NAMES], study=STUDY, classes=STUDY.classes))


def test_a_publication_carries_the_ledgers_head_and_is_the_same_when_repeated(tmp_path):
    store = store_of(tmp_path, *NAMES)
    head = store.log()[-1]
    first, again = store.publish(), store.publish()
    assert first.data == again.data
    assert fgm.read(first.data).payload.notes["ledger"] == {
        "version": 1,
        "total": store.total().digest,
        "number": head.number,
        "head": head.hash,
    }
    fgm.read(first.data).verify(store.key.public)
    store.join(summary("west"))
    assert store.publish().version == 2
    assert [entry.says["what"] for entry in store.log()] == ["open", *["join"] * 3, "publish", "join", "publish"]


def test_publishing_reads_no_contribution_again(tmp_path):
    store = store_of(tmp_path, *NAMES)
    for path in store.objects.folder.iterdir():
        path.unlink()
    assert Store(tmp_path).publish("afl").version == 1


def test_methods_that_moments_do_not_give_are_refused(tmp_path):
    store = store_of(tmp_path, *NAMES)
    for method in ("fedavg", "local"):
        with pytest.raises(InvalidParameter, match="not made of the moments that summaries hold"):
            store.publish(method)
    for method in ("fedlogit", "apfl"):
        with pytest.raises(InvalidParameter, match="takes rounds"):
            store.publish(method)
    with pytest.raises(InvalidParameter, match="'afl' has no step that is answered by files"):
        advance(store, "afl")
    empty = Store(tmp_path / "empty", study=STUDY)
    empty.join(b"no file")
    with pytest.raises(InvalidData, match="nothing to publish"):
        empty.publish()


def test_two_contributors_are_warned_of_what_they_learn(tmp_path):
    store = store_of(tmp_path, "north", "south")
    with pytest.warns(Revealing, match="two contributors"):
        published = store.publish("fedhip")
    file = fgm.read(published.data)
    assert "the other's Gram matrix" in file.payload.notes["reveals"]
    assert "sums of products can be computed from it" in reveals(file)[0]
    with pytest.warns(Revealing, match="the other's class counts"):
        head = fgm.read(store.publish("fedgram").data)
    assert "samples of each class" in reveals(head)[0]
    assert "products" not in reveals(head)[0]


def test_fedlogit_by_files_is_fedlogit(tmp_path):
    store, rounds = store_of(tmp_path, *NAMES), 3
    for number in range(1, rounds + 1):
        asked = advance(store, "fedlogit", {"rounds": rounds})
        assert isinstance(asked, Asked)
        assert asked.number == number
        assert advance(store, "fedlogit", {"rounds": rounds}) == asked  # without answers: the same file again
        [first, *others] = [answered(name, asked.data) for name in NAMES]
        assert [each.outcome for each in store.join(first, first)] == ["answered", "already in"]
        assert waited_for(store) == ["south", "east"]
        with pytest.raises(InvalidData, match="waits for 2 answers, of 'south', 'east'"):
            advance(store, "fedlogit", {"rounds": rounds})
        store.join(*others)
    published = advance(store, "fedlogit", {"rounds": rounds})
    fit = fgm.read(published.data).holding(fg.Fit)
    method = fg.FedLogit(rounds=rounds)
    same_model(fit, method.fit([client(name) for name in NAMES], study=STUDY, classes=STUDY.classes))
    assert advance(store, "fedlogit", {"rounds": rounds}).data == published.data


def test_answers_out_of_order_are_refused(tmp_path):
    store = store_of(tmp_path, *NAMES)
    [early] = store.join(answered("north", advance(Store(tmp_path), "fedlogit", {"rounds": 2}).data))
    assert early.outcome == "answered"
    old = advance(store_of(tmp_path / "other", *NAMES), "fedlogit", {"rounds": 2, "ridge": 1.0}).data
    [other] = store.join(answered("south", old))
    assert other.outcome == "refused"
    assert "got one to round 1" in other.why
    first = store.published.read(store.index.rounds()[0].digest).data
    store.join(*(answered(name, first) for name in ("south", "east")))
    advance(store, "fedlogit", {"rounds": 2})
    [late] = store.join(answered("north", first))
    assert "round 2" in late.why
    [stranger] = store.join(answered("west", first))
    assert "unknown contributor 'west'" in stranger.why
    store.remove("east")  # another total: rounds begin anew
    [ended] = store.join(answered("north", first))
    assert "no round is open" in ended.why
    assert advance(store, "fedlogit", {"rounds": 2}).number == 1


def test_an_answer_of_other_samples_is_refused(tmp_path):
    store = store_of(tmp_path, *NAMES)
    asked = advance(store, "fedlogit")
    [found] = store.join(answered("north", asked.data, n=39))
    assert "expected the 40 samples that" in found.why
    with pytest.raises(Mismatch):
        fgm.read(asked.data).of_kind("answer")


def test_leaving_one_site_out_from_the_files_is_that_in_memory(tmp_path):
    store = store_of(tmp_path, *NAMES)
    found = dict(validate(store, ridge=1.0))
    basis = fgm.read(store.publish("afl").data).payload.basis
    parts = {name: basis.moments(fgm.read(summary(name)).payload) for name in NAMES}
    wanted = validate_sites(parts, ridge=1.0)
    assert list(found) == list(NAMES)
    for name in NAMES:
        for which in ("left_out", "pooled", "own"):
            mine, theirs = getattr(found[name], which), getattr(wanted[name], which)
            assert mine.brier == pytest.approx(theirs.brier, rel=1e-9)
    with pytest.raises(InvalidData, match="two or more"):
        list(validate(store_of(tmp_path / "one", "north")))


def test_numeric_outcomes_are_published_as_they_are_fitted(tmp_path):
    columns = {"age": Number(range=(0, 120)), "y": Number(unit="steps", range=(0, 40_000), missing="refuse")}
    study = Study("steps", "y", columns, minimum_samples=5)
    rng, parties, store = np.random.default_rng(0), [], Store(tmp_path, study=study)
    for name in NAMES:
        age = rng.uniform(20, 90, 30)
        steps = 12_000 - 80 * age + rng.normal(0, 500, 30)
        parties.append(read_client(study, name, Table({"age": age, "y": steps})))
        moments = ClientSide(parties[-1], classes=NUMERIC, columns=study.sent).moments()
        store.join(fgm.encode("summary", moments, study=study, party=name, samples=30, columns=study.sent))
    for method in (fg.AFL(), fg.FedHiP(), fg.FedGram()):
        fit = fgm.read(store.publish(method.name).data).payload
        wanted = method.fit(parties, study=study)
        table = Table({"age": np.array([30.0, 60.0]), "y": np.zeros(2)})
        np.testing.assert_allclose(fit.predictor().scores(table), wanted.predictor().scores(table), rtol=1e-9)
    # Besides the model, the numbers for FedHiP's step are published: the passport says so.
    assert "sums of products can be computed from it" in reveals(fgm.read(store.publish("fedgram").data))[0]
    store.remove("east")
    with pytest.warns(Revealing, match="the other's Gram matrix"):
        store.publish("fedgram")
    assert all(site.left_out.r2 > 0.5 for _, site in validate(store))
    page = status_page(status(store, dict(validate(store))), store.log())
    assert "RMSE of y in steps; lower is better" in page
    assert "smallest class" not in page
    errors = status(store, dict(validate(store)))["contributions"][0]["errors"]
    assert 300 < errors["left_out"]["RMSE of y in steps"] < 900  # the noise is of 500 steps
    assert "minimum per party" in page
    assert "minimum per class" not in page  # a number has no classes
    with pytest.raises(InvalidParameter, match="needs classes"):
        advance(store, "fedlogit")


@pytest.mark.parametrize("damage", ["flipped", "lost", "signature"])
def test_a_damaged_publication_is_made_anew(tmp_path, damage):
    store = store_of(tmp_path, *NAMES)
    first = store.publish("afl")
    path = store.published.path(fgm.read(first.data).digest)
    if damage == "lost":
        path.unlink()
    elif damage == "signature":
        fit = fgm.read(first.data).payload
        path.write_bytes(fgm.encode("global", fit, study=STUDY.fingerprint, party="coordinator", key=KEYS["north"]))
    else:
        path.write_bytes(first.data[:-5] + bytes([first.data[-5] ^ 1]) + first.data[-4:])
    again = store.publish("afl")
    assert again.version == 2
    file = fgm.read(again.data)
    file.verify(store.key.public)
    weights, wanted = (each.payload.model.weights for each in (file, fgm.read(first.data)))
    assert weights.tobytes() == wanted.tobytes()


def test_other_settings_do_not_discard_answers(tmp_path):
    store = store_of(tmp_path, *NAMES)
    asked = advance(store, "fedlogit", {"rounds": 2})
    assert advance(store, "fedlogit", {"rounds": 3}).number == 1  # without answers
    asked = advance(store, "fedlogit", {"rounds": 2})
    store.join(*(answered(name, asked.data) for name in NAMES))
    with pytest.raises(InvalidParameter, match=r"at round 1, with 3 answers.* with --set rounds=2, or.*--restart"):
        advance(store, "fedlogit")
    assert len(store.index.answers()) == 3
    asked = advance(store, "fedlogit", {"rounds": 2})
    with pytest.raises(InvalidParameter, match="at round 2, with 0 answers"):  # round 1 was answered
        advance(store, "fedlogit")
    assert advance(store, "fedlogit", {"rounds": 1}, restart=True).number == 1
    assert store.index.answers() == {}


def test_a_run_that_was_published_is_not_under_way(tmp_path):
    store = store_of(tmp_path, *NAMES)
    asked = advance(store, "fedlogit", {"rounds": 1})
    store.join(*(answered(name, asked.data) for name in NAMES))
    published = advance(store, "fedlogit", {"rounds": 1})
    assert fgm.read(published.data).payload.method == "fedlogit"
    assert advance(store, "fedlogit", {"rounds": 1}).data == published.data
    assert advance(store, "fedlogit", {"rounds": 2}).number == 1
