"""A large table is read in blocks on each pass, and gives the results of rows in memory."""

import tracemalloc
import warnings
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import fedgram as fg
from fedgram.core.errors import BadSamples, Skipped
from fedgram.data.client import StreamedLabels, StreamedRows
from fedgram.data.own import blocks, csvfiles
from fedgram.studies import Study, streams
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Number
from fedgram.studies.model import judge
from studies.test_basis import STUDY as MIXED
from studies.test_basis import table
from support.campaign import examples
from support.threads import blas_threads

STUDY = replace(MIXED, minimum_group=0)  # random tables have small groups
NUMBERS = Study("amounts", "cost", {**STUDY.columns, "cost": Number(range=(0, 40_000))}, minimum_group=0)
ANALYTIC = [
    fg.AFL(),
    fg.FedHiP(),
    fg.FedHiP(alpha=2.0, beta=1.0),
    fg.FedGram(),
    fg.FedLogit(rounds=3),
    fg.Local(),
    fg.APFL(dim_primary=16, dim_refine=16),
    fg.Logistic(),
]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@contextmanager
def streaming(rows_of_parquet=7):
    """Let every file count as large, and blocks be of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "HELD_BYTES", 0)
        patch.setattr(csvfiles, "BYTES", 400)
        patch.setattr(blocks, "ROWS", rows_of_parquet)
        yield


def cells_of(n, seed):
    """Return the columns of a table whose outcomes depend on the others."""
    rng = np.random.default_rng(seed)
    made = table(n, rng)
    score = made["plain"] + (made["ward"] == "b") + 0.5 * rng.normal(size=n)
    made["y"] = np.where(score > 0.3, "yes", "no")
    made["y"][:2] = "yes", "no"
    return made | {"cost": (18_000 + 3_000 * score).clip(0, 40_000)}


def write(path, cells, outcome):
    names = [*STUDY.columns, outcome]
    columns = [["" if str(cell) == "nan" else str(cell) for cell in cells[name].tolist()] for name in names]
    lines = [",".join(names), *map(",".join, zip(*columns, strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def as_parquet(path):
    arrow_csv, pq = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(arrow_csv.read_csv(path), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def clients_of(study, files):
    """Return parties with test tables of their own."""
    found = []
    for name, (training, testing) in files.items():
        test = read_client(study, name, testing)
        found.append(replace(read_client(study, name, training), x_test=test.x, y_test=test.y))
    return found


def both_ways(study, files):
    """Return the same parties with rows in memory, and with rows that are read on each pass."""
    held = clients_of(study, files)
    with streaming():
        streamed = clients_of(study, files)
    for client in streamed:
        assert isinstance(client.x, StreamedRows)
        assert isinstance(client.y_test, StreamedLabels)
        assert len(client.x.sizes) > 1
    return held, streamed


def files_of(folder, sizes, seed, outcome="y"):
    return {
        f"party-{k}": tuple(
            write(folder / f"{k}-{part}.csv", cells_of(n, seed + 10 * k + part), outcome) for part in (0, 1)
        )
        for k, n in enumerate(sizes)
    }


def assert_same_fit(got, want, samples):
    if want.model is not None:
        np.testing.assert_allclose(got.model.scores(samples), want.model.scores(samples), **CLOSE)
    assert got.personal.keys() == want.personal.keys()
    for name, model in want.personal.items():
        np.testing.assert_allclose(got.personal[name].scores(samples), model.scores(samples), **CLOSE)


@pytest.mark.filterwarnings("ignore:::fedgram")
@pytest.mark.parametrize("method", ANALYTIC, ids=lambda method: method.name)
@examples(4)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(25, 60), min_size=2, max_size=3))
def test_a_fit_is_the_same(tmp_path_factory, method, seed, sizes):
    files = files_of(tmp_path_factory.mktemp("tables"), sizes, seed % 2**31)
    held, streamed = both_ways(STUDY, files)
    with streaming():
        got = method.fit(streamed, study=STUDY, classes=STUDY.classes)
    want = method.fit(held, study=STUDY, classes=STUDY.classes)
    assert_same_fit(got, want, np.concatenate([client.x_test for client in held]))
    assert got.evaluation == want.evaluation
    one, other = got.evaluation.probabilities, want.evaluation.probabilities
    assert (one.samples, one.right) == (other.samples, other.right)
    np.testing.assert_allclose(one.confidence, other.confidence, **CLOSE)
    assert one.squared == pytest.approx(other.squared, rel=1e-9)


@pytest.mark.filterwarnings("ignore:::fedgram")
@pytest.mark.parametrize("method", [fg.AFL(), fg.FedHiP(), fg.FedGram(), fg.Local()], ids=lambda method: method.name)
@examples(4)
@given(seed=st.integers(0, 2**31))
def test_numeric_outcomes_are_the_same(tmp_path_factory, method, seed):
    held, streamed = both_ways(NUMBERS, files_of(tmp_path_factory.mktemp("tables"), (40, 55), seed, "cost"))
    with streaming():
        got = method.fit(streamed, study=NUMBERS)
    want = method.fit(held, study=NUMBERS)
    assert_same_fit(got, want, np.concatenate([client.x_test for client in held])[:, :-1])
    for name, errors in want.evaluation.by_client.items():
        for what in ("squared", "absolute", "total", "spread"):
            found = getattr(got.evaluation.by_client[name]["cost"], what)
            assert found == pytest.approx(getattr(errors["cost"], what), rel=1e-9)


@pytest.fixture
def files(tmp_path):
    return files_of(tmp_path, (50, 40), 3)


@pytest.mark.parametrize(
    "method",
    [fg.FedAvg(rounds=1, epochs=1, lr=0.05), fg.FedACnnL(network="dnn")],
    ids=lambda method: method.name,
)
def test_methods_that_need_all_rows_get_them(files, method):
    held, streamed = both_ways(STUDY, files)
    with streaming():
        got = method.fit(streamed, study=STUDY, classes=STUDY.classes)
    want = method.fit(held, study=STUDY, classes=STUDY.classes)
    x = held[0].x_test
    np.testing.assert_allclose(got.model.scores(x), want.model.scores(x), rtol=1e-4, atol=1e-5)


def test_parquet_is_read_in_blocks_too(files):
    names = {name: tuple(map(as_parquet, pair)) for name, pair in files.items()}
    held, streamed = both_ways(STUDY, names)
    with streaming():
        got = fg.AFL().fit(streamed, study=STUDY, classes=STUDY.classes)
    want = fg.AFL().fit(held, study=STUDY, classes=STUDY.classes)
    np.testing.assert_allclose(got.model.weights, want.model.weights, **CLOSE)
    assert got.evaluation == want.evaluation


def test_joining_personalizing_and_judging_later(files):
    held, streamed = both_ways(STUDY, files)
    fit = fg.FedGram().fit(held, study=STUDY, classes=STUDY.classes)
    with streaming():
        again, own = fit.summarize(streamed[0]), fit.personalize(streamed[1])
        judged = judge(fit.predictor("party-0"), files["party-0"][1])
    np.testing.assert_allclose(again.gram, fit.summarize(held[0]).gram, **CLOSE)
    np.testing.assert_allclose(own.weights, fit.personalize(held[1]).weights, **CLOSE)
    want = judge(fit.predictor("party-0"), files["party-0"][1])
    assert (judged.accuracy, judged.classes, judged.usual) == (want.accuracy, want.classes, want.usual)
    assert judged.brier == pytest.approx(want.brier, rel=1e-9)
    assert judged.calibration == pytest.approx(want.calibration, rel=1e-9)


def test_bad_rows_are_settled_once_and_left_out_on_each_pass(files):
    path = files["party-0"][0]
    good = read_client(STUDY, "north", path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:9], lines[9].replace(",yes", ",maybe").replace(",no", ",maybe"), *lines[9:]]))
    with streaming():
        with pytest.raises(BadSamples, match="line 10"):
            read_client(STUDY, "north", path)
        with pytest.warns(Skipped, match="1 bad row"):
            client = read_client(STUDY, "north", path, on_bad="skip")
        with warnings.catch_warnings(action="error"):
            np.testing.assert_array_equal(np.asarray(client.x), good.x)
        np.testing.assert_array_equal(np.asarray(client.y), good.y)
        assert client.labels() == good.labels() == ["no", "yes"]
        assert client.label_counts() == good.label_counts()


def test_columns_in_the_order_of_others(files):
    [held, _], [streamed, _] = both_ways(STUDY, files)
    order = (*STUDY.sent[2:], *STUDY.sent[:2])
    with streaming():
        np.testing.assert_array_equal(np.asarray(streamed.reordered(order).x), held.reordered(order).x)


def test_a_client_can_be_sent_to_another_process(files, monkeypatch, tmp_path):
    """As Flower's simulation does it, whose processes may work in another folder."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    held = read_client(STUDY, "party-0", files["party-0"][0])
    monkeypatch.chdir(tmp_path)
    with streaming():
        client = read_client(STUDY, "party-0", files["party-0"][0].name)
        sent = cloudpickle.dumps(client)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        again = cloudpickle.loads(sent)
        assert isinstance(again.x, StreamedRows)
        np.testing.assert_array_equal(np.asarray(again.x), held.x)


def test_small_tables_and_tables_in_memory_are_held(files):
    path = files["party-0"][0]
    assert isinstance(read_client(STUDY, "north", path).x, np.ndarray)
    cells = cells_of(40, 1)
    del cells["cost"]
    with streaming():
        assert isinstance(read_client(STUDY, "north", type(table(1, np.random.default_rng(0)))(cells)).x, np.ndarray)


def test_memory_does_not_grow_with_rows(tmp_path):
    """A personal fit of four times the rows: each row keeps a few bytes."""
    peaks = []
    for n in (4_000, 16_000):
        files = files_of(tmp_path, (n,), 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "HELD_BYTES", 0)
            patch.setattr(csvfiles, "BYTES", 1 << 15)
            clients = clients_of(STUDY, files)
            fg.FedGram().fit(clients, study=STUDY, classes=STUDY.classes)  # loaded once
            tracemalloc.start()
            fg.FedGram().fit(clients, study=STUDY, classes=STUDY.classes)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] - peaks[0] < 12_000 * 40, "a row has 8 columns, 64 bytes"


def test_blas_has_one_thread_while_a_narrow_table_is_read(files, monkeypatch):
    with threadpool_limits(2, user_api="blas"), streaming():
        client = read_client(STUDY, "north", files["party-0"][0])
        first = next(passing := iter(client.x))
        assert len(first)
        assert set(blas_threads()) == {1}
        passing.close()  # a reader that stops early gives them back, too
        assert set(blas_threads()) == {2}
        monkeypatch.setattr("fedgram.core.threads.READING", 1)
        assert {frozenset(blas_threads()) for _ in client.x} == {frozenset({2})}
