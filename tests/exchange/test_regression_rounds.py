"""Logistic and Poisson regression by files: the pooled table; impossible and revealing answers are refused."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import InvalidData, RefusedMessage, Revealing, Separated
from fedgram.engines.inprocess import Room
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.party_side import fit_of
from fedgram.exchange.rounds.round_messages import Answer, Round, answer, check_answer
from fedgram.exchange.rounds.round_server import Asked, advance, waited_for
from fedgram.exchange.store.study_store import Store
from fedgram.moments import packing
from fedgram.protocol import session
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import effective_rows
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Flag, Number
from fedgram.studies.study import Study
from studies.test_basis import Table
from support.campaign import examples
from support.regressions import COLUMNS, parties, study_of, trial

CLASSES = study_of(COLUMNS, minimum_samples=5, minimum_cell=3, minimum_group=0)
COUNTS = study_of(COLUMNS | {"log_months": Number(range=(0, 4))}, counts=True, minimum_cell=3, minimum_group=0)
CASES = {
    "logistic": (CLASSES, "classes", {"event": "no"}),
    "poisson": (COUNTS, "counts", {"offset": "log_months", "columns": "dose,sex,year"}),
}
FIELDS = {
    "logistic": ("gradient", "information", "log_likelihood"),
    "poisson": ("gradient", "information", "log_likelihood", "constant", "saturated", "pearson"),
}


def clients_of(name, seed=0, n=240):
    study, outcome, _ = CASES[name]
    table, owners = trial(n=n, seed=seed, parties=3)
    return parties(study, {key: table[key] for key in study.needed if key != "y"} | {"y": table[outcome]}, owners)


def moments_of(study, client):
    return ClientSide(client, classes=study.schema.classes, columns=study.sent).moments()


def store_of(path, study, clients):
    store = Store(path, study=study)
    for client in clients:
        details = {"party": client.name, "samples": len(client.y), "columns": study.sent}
        [joined] = store.join(fgm.encode("summary", moments_of(study, client), study=study, **details))
        assert joined.outcome == "joined", joined.why
    return store


def answer_file(study, request, client, reply=None):
    said = answer(study, request, client) if reply is None else Answer(request.payload.number, request.digest, reply)
    about = {"party": client.name, "samples": len(client.y), "columns": study.sent}
    return fgm.encode("answer", said, study=study.fingerprint, **about)


@pytest.mark.parametrize("name", CASES)
def test_rounds_by_files_are_those_in_one_process(tmp_path, name):
    study, _, settings = CASES[name]
    clients = clients_of(name)
    store = store_of(tmp_path, study, clients)
    rounds = 0
    while isinstance(found := advance(store, name, settings), Asked):
        rounds += 1
        request = fgm.read(found.data)
        joined = store.join(*(answer_file(study, request, client) for client in clients))
        assert [each.outcome for each in joined] == ["answered"] * 3, [each.why for each in joined]
    fit, _ = fit_of(fgm.read(found.data))
    wanted = fg.registry[name](**settings).fit(clients, study=study)
    table, other = fit.coefficients(), wanted.coefficients()
    assert rounds == table.summary["rounds"] <= 10
    for row, same in zip(table.rows, other.rows, strict=True):
        assert (row.term, row.estimate, row.se) == (same.term, *map(pytest.approx, (same.estimate, same.se)))
    np.testing.assert_allclose(
        [row.estimate for row in table.rows], [row.estimate for row in other.rows], rtol=1e-9, atol=1e-12
    )
    assert store.coefficients(method=name).rows == table.rows
    if not study.classes:
        linear = store.coefficients()
        assert linear.kind == "linear"
        assert f"has also published {name}: --method prints that table" in linear.notes[-1]
    assert fit.contributors == tuple(client.name for client in clients)
    own = fit.personalize(clients[0])
    x = clients[0].x if study.classes else clients[0].x[:, :-1]
    np.testing.assert_allclose(own.scores(x), fit.model.scores(x), rtol=1e-12)


def test_a_table_says_that_parties_have_joined_since(tmp_path):
    study, clients = CLASSES, clients_of("logistic", n=320)
    store = store_of(tmp_path, study, clients[:2])
    with pytest.raises(InvalidData, match="expected a published regression by logistic or poisson, got none"):
        store.coefficients()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Revealing)
        published_by(store, study, clients[:2], "logistic")
    assert not any("before parties joined" in note for note in store.coefficients(method="logistic").notes)
    details = {"party": clients[2].name, "samples": len(clients[2].y), "columns": study.sent}
    store.join(fgm.encode("summary", moments_of(study, clients[2]), study=study, **details))
    assert store.coefficients().notes[-1].startswith("Version 1 of the store, published before")
    with pytest.raises(InvalidData, match="expected a published regression by poisson, got none"):
        store.coefficients(method="poisson")


def published_by(store, study, clients, name):
    while isinstance(found := advance(store, name), Asked):
        store.join(*(answer_file(study, fgm.read(found.data), client) for client in clients))
    return found


def test_two_parties_are_warned_of(tmp_path):
    clients = clients_of("logistic")[:2]
    store = store_of(tmp_path, CLASSES, clients)
    with pytest.warns(Revealing, match="with two contributors, what is published gives each of them the other's sums"):
        published_by(store, CLASSES, clients, "logistic")


def test_separation_ends_the_rounds_before_the_first(tmp_path):
    table = {"dose": np.arange(60.0), "year": 2020 + np.arange(60) / 10, "sex": np.array(["F", "M"] * 30)}
    table |= {"group": np.array(["a", "b", "c"] * 20), "y": np.array(["no", "yes"] * 30)}
    study = study_of({**COLUMNS, "dose": Number(range=(0, 100))})
    store = store_of(tmp_path, study, parties(study, table, np.arange(60) % 3 // 2))
    with pytest.raises(Separated, match="separation by column 'sex': all 30 rows in which 'sex=M' is 1 have one class"):
        advance(store, "logistic")


# Answers that cannot be
def first(reply, factor):
    """Return the information with its first diagonal element times a factor."""
    packed = reply["information"].copy()
    packed[packing.diagonal(len(reply["gradient"]))[0]] *= factor
    return packed


@pytest.mark.parametrize("size", [1e15, 1e200, -1e15, np.inf, np.nan])
@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in FIELDS.items() for field in fields])
def test_absurd_answers_are_refused_at_join(tmp_path, name, field, size):
    study, _, settings = CASES[name]
    clients = clients_of(name)
    store = store_of(tmp_path, study, clients)
    request = fgm.read(advance(store, name, settings).data)
    honest = answer(study, request, clients[0]).reply
    wrong = np.full_like(honest[field], size) if isinstance(honest[field], np.ndarray) else float(size)
    if field == "pearson" and size == 1e15:
        return  # such a size is possible, where a rate is far too low
    [found] = store.join(answer_file(study, request, clients[0], honest | {field: wrong}))
    assert found.outcome == "refused"
    if np.isfinite(size):
        assert "'party-0' refused" in found.why
    assert waited_for(store) == [client.name for client in clients]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("logistic", lambda reply: {"information": first(reply, 5.0)}, "more than a quarter of its own XᵀX"),
        ("logistic", lambda reply: {"gradient": reply["gradient"] * ([1e3] + [1] * 5)}, "the gradient of 'dose' is"),
        ("logistic", lambda reply: {"log_likelihood": reply["log_likelihood"] / 3}, "'log_likelihood' is"),
        ("logistic", lambda reply: {"log_likelihood": reply["log_likelihood"] * 3}, "'log_likelihood' is"),
        ("logistic", lambda reply: {"information": -reply["information"]}, "must be positive semidefinite"),
        ("poisson", lambda reply: {"gradient": reply["gradient"] + 1.0}, "gradient and information of 'dose' is"),
        ("poisson", lambda reply: {"information": reply["information"] * 1.1}, "gradient and information of 'dose'"),
        ("poisson", lambda reply: {"log_likelihood": reply["log_likelihood"] + 1.0}, "'log_likelihood' is"),
        ("poisson", lambda reply: {"saturated": -1e4}, "'saturated' is"),
        ("poisson", lambda reply: {"constant": -1.0}, "'constant' is"),
    ],
)
def test_answers_that_contradict_the_summary_are_refused(tmp_path, name, change, words):
    study, _, settings = CASES[name]
    clients = clients_of(name)
    store = store_of(tmp_path, study, clients)
    request = fgm.read(advance(store, name, settings).data)
    honest = answer(study, request, clients[0]).reply
    [found] = store.join(answer_file(study, request, clients[0], honest | change(honest)))
    assert found.outcome == "refused"
    assert words in found.why
    [taken] = store.join(answer_file(study, request, clients[0], honest))
    assert taken.outcome == "answered"


def test_another_partys_counts_are_refused(tmp_path):
    study, _, settings = CASES["poisson"]
    clients = clients_of("poisson")
    store = store_of(tmp_path, study, clients)
    request = fgm.read(advance(store, "poisson", settings).data)
    [found] = store.join(answer_file(study, request, clients[0], answer(study, request, clients[1]).reply))
    assert "Xᵀy in its summary" in found.why


def uneven(seed):
    """Return studies of classes and of counts with very uneven parties: in other units, of few rows, of one outcome."""
    rng = np.random.default_rng(seed)
    columns = {"a": Number(range=(0, 120)), "b": Number(), "f": Flag()}
    limits = {"minimum_samples": 0, "minimum_cell": 0, "maximum_columns_per_row": 0.0}
    classes = Study("any", "y", columns, ("no", "yes"), **limits)
    counts = Study("any", "y", columns | {"y": Number(range=(0, float(10 ** rng.integers(2, 6))))}, **limits)
    offset, scale = 10.0 ** rng.uniform(-6, 6), 10.0 ** rng.uniform(-4, 4)
    found = {"logistic": (classes, []), "poisson": (counts, [])}
    for k, n in enumerate(rng.choice([2, 3, 12, 60, 400], size=3)):
        noise = rng.standard_cauchy(n) if rng.random() < 0.3 else rng.normal(size=n)
        rows = {
            "a": np.clip(60 + 15 * rng.normal(size=n), 0, 120),
            "b": offset + scale * noise * rng.choice([0, 1, 1, 1000]),
            "f": np.where(rng.random(n) < rng.choice([0, 0.02, 0.5]), "yes", "no"),
        }
        y = rng.integers(0, 2, n) if rng.random() < 0.75 else np.full(n, rng.integers(2))
        many = np.minimum(rng.poisson(10.0 ** rng.uniform(-1, 1.5), n), 90).astype(float)
        for name, outcome in (("logistic", np.array(["no", "yes"])[y]), ("poisson", many)):
            study, clients = found[name]
            clients.append(read_client(study, f"party-{k}", Table(rows | {"y": outcome})))
    return found


@pytest.mark.filterwarnings("ignore")  # of columns far from zero, few samples and new records
@pytest.mark.parametrize("name", CASES)
@examples(25)
@given(st.integers(0, 2**20))
def test_honest_answers_of_uneven_parties_are_taken(name, seed):
    study, clients = uneven(seed)[name]
    rng = np.random.default_rng(seed)
    joined = [moments_of(study, each) for each in clients]
    basis = study.basis_of(sum(joined[1:], joined[0]))
    d = len(basis.of_features.shift)
    for size in (0.0, 0.1, 1.0, 3.0):
        estimated = np.flatnonzero(np.append(rng.random(d) < 0.8, True)).astype(np.int64)
        payload = {"coefficients": size * rng.normal(size=d + 1), "estimated": estimated}
        request = fgm.read(fgm.encode("round", Round(1, name, {}, basis, payload), study=study, party="coordinator"))
        for client, moments in zip(clients, joined, strict=True):
            said = fgm.read(answer_file(study, request, client))
            assert check_answer(study, request, said, moments).number == 1


# Answers that would show rows
@pytest.mark.parametrize("name", CASES)
def test_a_round_that_singles_out_a_row_is_refused_by_the_party(name):
    study, _, _ = CASES[name]
    client = clients_of(name)[0]
    basis = study.basis_of(moments_of(study, client))
    side = ClientSide(client, classes=study.schema.classes, columns=study.sent, basis=basis)
    ages = np.sort(side.x[:, 0])
    steep = 60 / (ages[-1] - ages[-2])
    coefficients = np.zeros(side.x.shape[1] + 1)
    payload = {"coefficients": coefficients, "estimated": np.arange(len(coefficients))}

    def asked():
        return fgm.read(fgm.encode("round", Round(1, name, {}, basis, payload), study=study, party="coordinator"))

    assert answer(study, asked(), client).reply["gradient"].shape == (len(coefficients),)
    coefficients[0], coefficients[-1] = steep, -steep * (ages[-1] + ages[-2]) / 2 + (0 if name == "logistic" else 20)
    with pytest.raises(InvalidData, match=r"would mostly be of 1\.\d of the [0-9]+ samples of 'party-0'"):
        answer(study, asked(), client)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        {"coefficients": np.zeros(4), "estimated": np.arange(6)},
        {"coefficients": np.zeros(6), "estimated": np.arange(5)},
        {"coefficients": np.zeros(6), "estimated": np.array([0, 0, 5])},
        {"coefficients": np.zeros(6), "estimated": np.array([-1, 5])},
        {"coefficients": np.zeros(6), "estimated": np.arange(6.0)},
        {"coefficients": np.zeros(6), "estimated": np.array([[5]])},
        {"coefficients": np.zeros(6), "estimated": np.arange(6), "more": 1},
    ],
    ids=str,
)
def test_requests_that_the_method_does_not_make_are_refused(payload):
    client = clients_of("logistic")[0]
    basis = CLASSES.basis_of(moments_of(CLASSES, client))
    asked = Round(1, "logistic", {}, basis, payload)
    request = fgm.read(fgm.encode("round", asked, study=CLASSES, party="coordinator"))
    with pytest.raises(RefusedMessage, match="expected 6 finite coefficients and the places"):
        answer(CLASSES, request, client)


def effective(method, study, clients):
    """Return the fewest effective rows in an honest run: of an answer, and of the difference to an earlier one."""
    asked, fewest = [], [np.inf, np.inf]
    method.fit(clients, study=study, engine=Noting(asked))
    for client in clients:
        side = ClientSide(client, classes=study.schema.classes, columns=study.sent, basis=asked[0]["basis"])
        weights = [np.concatenate(list(method.weights(side, each["payload"]))) for each in asked]
        for place, own in enumerate(weights):
            fewest[0] = min(fewest[0], effective_rows(own, side.y))
            fewest[1] = min([fewest[1], *(effective_rows(own, side.y, other) for other in weights[:place])])
    return fewest


class Noting(fg.InProcess):
    """An engine that notes the requests of rounds."""

    def __init__(self, asked):
        super().__init__()
        object.__setattr__(self, "asked", asked)

    def run(self, method, clients, *, study=None, **options):
        asked = self.asked

        class Hearing(Room):
            def exchange(self, step, requests):
                sent = list(requests)
                if step == "likelihood":
                    asked.append(wire.decode(sent[0][1]))
                return super().exchange(step, sent)

        with Hearing(method, clients, self, study) as room:
            return session.run(method, room, study=study, **options)


@pytest.mark.parametrize(
    ("method", "count", "alone", "beside"),
    [
        (fg.Logistic(), 10, 6.5, 5.1),
        (fg.Logistic(), 5, 13.3, 11.8),
        (fg.Poisson(), 10, 5.1, 1.3),
        (fg.Poisson(), 5, 12.4, 1.8),
    ],
)
def test_of_how_few_rows_honest_rounds_are(method, count, alone, beside):
    data = pytest.importorskip("sklearn.datasets").load_diabetes()
    table = dict(zip(data.feature_names, data.data.T, strict=True))
    counts = isinstance(method, fg.Poisson)
    table["y"] = data.target if counts else np.where(data.target > np.median(data.target), "yes", "no")
    study = study_of({name: Number(range=(-1, 1)) for name in data.feature_names}, counts=counts)
    clients = parties(study, table, np.arange(len(data.target)) % count)
    found = effective(method, study, clients)
    assert found == [pytest.approx(alone, abs=0.1), pytest.approx(beside, rel=0.3)]  # late answers differ by rounding
