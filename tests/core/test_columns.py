"""Columns are matched by name: in tables, moments, models, runs and newcomers."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.checks import example
from fedgram.cli import app
from fedgram.core import wire
from fedgram.core.columns import as_columns, difference, samples_of
from fedgram.core.errors import ClientFailed, InvalidData, Mismatch
from fedgram.data.own.files import open_path
from fedgram.engines.inprocess import InProcess
from fedgram.protocol.method import step
from fedgram.protocol.registry import registry

COLUMNS = ("age", "bp", "bmi", "sugar", "iron")
SHUFFLED = ("sugar", "iron", "age", "bmi", "bp")
METHODS = ["afl", "fedhip", "apfl", "fedgram", "fedlogit", "local", "fedavg", "fedacnnl"]


class Frame:
    """The least that a table of another library offers: names, and columns by name."""

    def __init__(self, **columns):
        self._columns = columns

    @property
    def columns(self):
        return list(self._columns)

    def __getitem__(self, name):
        return self._columns[name]


class Stream:
    """A table that can only be had as a stream of Arrow."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def patients(n=90, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)) * [1, 5, 0.2, 3, 1] + [0, 3, 1, 0, -2]
    return x, np.where(x @ [2.0, -0.3, 1.0, 0.2, 0.0] + 0.9 > rng.normal(size=n) * 0.3, "ill", "well")


def shuffled(x):
    return x[:, [COLUMNS.index(name) for name in SHUFFLED]]


def arrow(x, columns):
    return pytest.importorskip("pyarrow").table(dict(zip(columns, x.T, strict=True)))


def frame(x, columns):
    return Frame(**dict(zip(columns, x.T, strict=True)))


def stream(x, columns):
    return Stream(arrow(x, columns))


TABLES = pytest.mark.parametrize("table", [arrow, frame, stream])


def write(path: Path, x, y, columns, **more):
    header = [*columns, "label", *more]
    rows = [
        ",".join([*map(repr, row), label, *extra])
        for row, label, *extra in zip(x.tolist(), y, *more.values(), strict=True)
    ]
    path.write_text("\n".join([",".join(header), *rows]) + "\n")
    return path


@TABLES
def test_a_client_takes_names_from_a_table(table):
    x, y = patients()
    client = fg.Client("a", table(x, COLUMNS), y, table(shuffled(x), SHUFFLED), y)
    assert client.columns == COLUMNS
    np.testing.assert_array_equal(client.x, x)
    np.testing.assert_array_equal(client.x_test, x)
    assert fg.Client("a", x, y).columns == ()
    np.testing.assert_array_equal(fg.Client("a", x, y, columns=COLUMNS).reordered(SHUFFLED).x, shuffled(x))


def test_a_client_refuses_names_that_do_not_fit():
    x, y = patients()
    with pytest.raises(InvalidData, match="client 'a'.*4 column names for 5 columns"):
        fg.Client("a", x, y, columns=COLUMNS[:4])
    with pytest.raises(InvalidData, match="client 'a'.*column 'age' occurs twice"):
        fg.Client("a", x, y, columns=("age", *COLUMNS[:4]))
    with pytest.raises(InvalidData, match="client 'a'.*the table lacks column 'iron'"):
        fg.Client("a", arrow(x, COLUMNS), y, arrow(x[:, :4], COLUMNS[:4]), y)
    with pytest.raises(InvalidData, match="client 'a'.*column 'sex' holds .*, not numbers"):
        fg.Client("a", Frame(sex=["m", "f"]), ["ill", "well"])


def test_tables_without_names_are_arrays():
    assert samples_of([[1, 0], [0, 1]], ("a", "b")).tolist() == [[1, 0], [0, 1]]

    class Numbered:
        columns = (0, 1)

        def __array__(self, dtype=None, copy=None):
            return np.eye(2)

    assert fg.Client("a", Numbered(), [0, 1]).columns == ()


@TABLES
def test_moments_of_tables_are_aligned(table):
    x, y = patients()
    options = {"classes": ["ill", "well"]}
    whole = fg.Moments.of(table(x, COLUMNS), y, **options)
    assert whole.schema.columns == COLUMNS
    for n in (45, 1):  # a Gram matrix, and a factor
        parts = [
            fg.Moments.of(table(x[:-n], COLUMNS), y[:-n], **options),
            fg.Moments.of(table(shuffled(x)[-n:], SHUFFLED), y[-n:], **options),
        ]
        total = parts[0] + parts[1]
        assert total.schema == whole.schema
        np.testing.assert_allclose(total.gram, whole.gram, rtol=1e-12)
        np.testing.assert_allclose(total.cross, whole.cross, rtol=1e-12)
        left = total - parts[1]
        np.testing.assert_allclose(left.gram, parts[0].gram, rtol=1e-9, atol=1e-9)


def test_moments_with_a_bias_are_aligned():
    x, y = patients()
    options = {"classes": ["ill", "well"], "bias": True}
    want = fg.Moments.of(x, y, columns=COLUMNS, **options)
    got = fg.Moments.of(shuffled(x), y, columns=SHUFFLED, **options).reordered(COLUMNS)
    np.testing.assert_allclose(got.gram, want.gram, rtol=1e-12)
    assert got.schema == want.schema


def test_moments_of_other_columns_are_refused_by_name():
    x, y = patients()
    whole = fg.Moments.of(x, y, classes=["ill", "well"], columns=COLUMNS)
    other = fg.Moments.of(x, y, classes=["ill", "well"], columns=("age", "bp", "bmi", "sugar", "zinc"))
    with pytest.raises(Mismatch, match="lacks column 'iron'; has unknown column 'zinc'"):
        whole + other
    with pytest.raises(Mismatch, match="no column names"):
        whole + fg.Moments.of(x, y, classes=["ill", "well"])
    with pytest.raises(Mismatch, match="zinc"):
        whole.reordered(other.schema.columns)
    assert fg.Moments.from_bytes(whole.to_bytes()) == whole


def test_features_made_from_columns_are_not_reordered():
    x, y = patients()
    made = [
        fg.Moments.of(np.tanh(x), y, classes=["ill", "well"], columns=order, features="tanh@1")
        for order in (COLUMNS, SHUFFLED)
    ]
    with pytest.raises(Mismatch, match="in another order"):
        made[0] + made[1]


@pytest.mark.parametrize("name", METHODS)
@TABLES
def test_models_align_a_table_and_refuse_missing_columns(name, table):
    x, y = patients()
    fit = example(name).fit([fg.Client("a", arrow(x, COLUMNS), y)])
    model = fit.model or fit.personal["a"]
    assert model.columns == COLUMNS
    want = model.scores(x)
    np.testing.assert_array_equal(model.scores(table(shuffled(x), SHUFFLED)), want)
    more = np.column_stack([shuffled(x), y == "ill"]).astype(float)
    np.testing.assert_array_equal(model.predict(table(more, (*SHUFFLED, "extra"))), model.predict(x))
    with pytest.raises(Mismatch, match="the table lacks column 'iron'"):
        model.scores(table(x[:, :4], COLUMNS[:4]))
    again = wire.decode(wire.encode(model), sender="somebody")
    assert again.columns == COLUMNS


@pytest.mark.parametrize("name", METHODS)
def test_a_run_aligns_what_clients_have_in_another_order(name):
    x, y = patients(160)
    cut = [slice(0, 60), slice(60, 110), slice(110, 160)]

    def clients(*orders):
        tables = [arrow(x, COLUMNS) if order is COLUMNS else arrow(shuffled(x), SHUFFLED) for order in orders]
        return [
            fg.Client(f"c{k}", t.slice(s.start, 40), y[s][:40], t.slice(s.start + 40, 10), y[s][40:50])
            for k, (t, s) in enumerate(zip(tables, cut, strict=True))
        ]

    method = example(name)
    want = method.fit(clients(COLUMNS, COLUMNS, COLUMNS))
    # The first client does not decide: the order of most clients counts.
    got = method.fit(clients(SHUFFLED, COLUMNS, COLUMNS), engine=InProcess(workers=2))
    assert got.evaluation == want.evaluation
    pairs = [(got.personal[name], want.personal[name]) for name in want.personal]
    pairs += [(got.model, want.model)] if want.model is not None else []
    for mine, theirs in pairs:
        assert mine.columns == COLUMNS
        np.testing.assert_array_equal(mine.scores(x), theirs.scores(x))


def test_a_client_with_other_columns_is_refused_by_name():
    x, y = patients()
    clients = [fg.Client(name, arrow(x, COLUMNS), y) for name in ("b", "c")]
    other = fg.Client("a", arrow(x[:, :4], ("zinc", *COLUMNS[:3])), y)
    with pytest.raises(ClientFailed, match="client 'a': lacks columns 'iron', 'sugar'; has unknown column 'zinc'"):
        fg.AFL().fit([other, *clients])
    fit = fg.AFL().fit([other, *clients, fg.Client("d", x, y)], require=2)
    assert set(fit.absent) == {"a", "d"}
    assert "no column names" in fit.absent["d"]


class Liar(fg.AFL):
    """AFL in which client "liar" sends false values."""

    @step
    def hello(self, client):
        told = super().hello(client)
        return told | {"columns": self.lie} if client.name == "liar" else told

    @step
    def summarize(self, client):
        moments = super().summarize(client)
        if client.name != "liar" or self.lie != list(COLUMNS):
            return moments
        return fg.Moments.of(client.x, client.data.y, classes=client.classes, columns=SHUFFLED)


@pytest.mark.parametrize(
    "lie", [["age"] * 5, ["age"], [*COLUMNS, "zinc"], [1, 2, 3, 4, 5], "age", None, list(COLUMNS)], ids=repr
)
def test_a_client_that_lies_about_its_columns_fails_alone(lie):
    x, y = patients()
    clients = [fg.Client(name, arrow(x, COLUMNS), y) for name in ("liar", "a", "b")]
    method = Liar()
    object.__setattr__(method, "lie", lie)
    fit = method.fit(clients, require=2)
    assert fit.contributors == ("a", "b")
    assert set(fit.absent) | set(fit.lost) == {"liar"}
    assert fit.model.columns == COLUMNS


def test_a_tie_is_settled_by_the_alphabet_not_by_who_is_first():
    x, y = patients()
    pair = [fg.Client("a", arrow(shuffled(x), SHUFFLED), y), fg.Client("b", arrow(x, COLUMNS), y)]
    assert fg.AFL().fit(pair).model.columns == fg.AFL().fit(pair[::-1]).model.columns == COLUMNS


def test_newcomers_are_aligned_or_refused():
    x, y = patients()
    small = {"apfl": {"dim_primary": 24, "dim_refine": 24}}
    for name in ("fedhip", "apfl", "fedgram", "afl"):
        fit = registry[name](**small.get(name, {})).fit(
            [fg.Client("a", arrow(x[::3], COLUMNS), y[::3]), fg.Client("b", arrow(x[1::3], COLUMNS), y[1::3])]
        )
        late, same = fg.Client("late", arrow(shuffled(x), SHUFFLED), y), fg.Client("late", arrow(x, COLUMNS), y)
        np.testing.assert_allclose(
            fit.personalize(late).scores(x), fit.personalize(same).scores(x), rtol=1e-12, atol=1e-12
        )
        assert fit.personalize(late).columns == COLUMNS
        assert fit.summarize(late) == fit.summarize(same)
        assert fit.add(fit.summarize(late), name="late").model.columns == COLUMNS
        with pytest.raises(Mismatch, match="client 'late' lacks column 'iron'"):
            fit.personalize(fg.Client("late", arrow(x[:, :4], COLUMNS[:4]), y))
        with pytest.raises(Mismatch, match="client 'late' has no column names"):
            fit.personalize(fg.Client("late", x, y))


def test_nodes_with_files_in_another_order(tmp_path):
    x, y = patients(120)
    flower = pytest.importorskip("fedgram.engines.flower.config", exc_type=ImportError)
    study = flower.App(classes="ill, well")
    orders = {"straight": (COLUMNS, lambda a: a), "turned": (SHUFFLED, shuffled)}

    def node(name, order, rows):
        columns, turned = orders[order]
        path = write(tmp_path / f"{name}-{order}.csv", turned(x)[rows], y[rows], columns)
        return flower.NodeConfig(name=name, data=str(path), folder=str(tmp_path / name)).client(study)

    first = [node("a", "straight", slice(0, 50)), node("b", "straight", slice(50, 90))]
    third = slice(90, 120)
    want = fg.FedGram().fit([*first, node("c", "straight", third)], classes=study.class_names())
    got = fg.FedGram().fit([*first, node("c", "turned", third)], classes=study.class_names())
    assert got.evaluation == want.evaluation
    np.testing.assert_allclose(got.model.weights, want.model.weights, rtol=1e-12)
    assert got.model.columns == COLUMNS


def test_predict_aligns_a_file_by_name(tmp_path):
    x, y = patients()
    write(tmp_path / "train.csv", x, y, COLUMNS)
    data = open_path(tmp_path / "train.csv")
    assert data.columns == COLUMNS
    fit = fg.AFL().fit(fg.make_clients(data, [np.arange(60)]), classes=data.classes)
    fit.save(tmp_path / "fit.safetensors")
    new = write(tmp_path / "new.csv", shuffled(x), y, SHUFFLED, ward=["w"] * len(y))
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "fit.safetensors"), str(new)])
    assert done.exit_code == 0, done.exception
    want = fit.model.predict(x).tolist()
    assert done.stdout.split() == want
    right = np.mean(np.array(want) == y)
    assert "not used: column 'ward'" in done.stderr
    assert f"{right:.2%} of 90 samples are right" in done.stderr
    assert right > 0.85
    write(tmp_path / "less.csv", x[:, :4], y, COLUMNS[:4])
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "fit.safetensors"), str(tmp_path / "less.csv")])
    assert isinstance(done.exception, Mismatch)
    assert "lacks column 'iron', which the model was made from" in str(done.exception)


def test_differences_in_words():
    assert difference(("a", "b"), ("b", "a")) == ""
    assert difference((), ("a",)) == "has no column names, the others do"
    assert difference(("a",), ()) == "has column names, the others do not"
    with pytest.raises(InvalidData, match="must be a text"):
        as_columns([3])  # type: ignore[list-item]
