"""Type families as clients, drawn from real fonts in the layout of the packages that bring them."""

import shutil
from pathlib import Path

import matplotlib
import numpy as np
import pytest

import fedgram as fg
from fedgram.core.cache import cache_dir
from fedgram.core.errors import InvalidData
from fedgram.data.published import catalog
from fedgram.data.published.layouts import CHARACTERS
from fedgram.experiments import Experiment, runs_of

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
FACES = {"400-normal": "", "700-normal": "-Bold", "400-italic": "-Oblique", "700-italic": "-BoldOblique"}
FAMILIES = {"sans": "DejaVuSans", "mono": "DejaVuSansMono"}


@pytest.fixture(autouse=True)
def folder(tmp_path, cache):
    for family, file in FAMILIES.items():
        package = tmp_path / "own" / f"fontsource-{family}-1.0.0" / "package"
        (package / "files").mkdir(parents=True)
        (package / "LICENSE").write_text(f"licence of {family}")
        for face, style in FACES.items():
            # FreeType looks at the content, not at the name.
            shutil.copy(FONTS / f"{file}{style}.ttf", package / "files" / f"{family}-latin-{face}.woff2")
    return tmp_path / "own"


def test_every_family_shows_every_character_and_holds_back_a_face(folder):
    data = catalog.load("typefaces", folder)
    assert data.classes == tuple(CHARACTERS)
    assert data.x.shape == (2 * 3 * 62, 28, 28)
    assert data.x_test.shape == (2 * 62, 28, 28)
    for owners, labels, faces in ((data.groups, data.y, 3), (data.groups_test, data.y_test, 1)):
        for family in FAMILIES:
            assert np.array_equal(np.bincount(labels[owners == family]), np.full(62, faces))
    # No character is empty, off centre, or drawn as another one.
    images = data.x.reshape(6, 62, 28, 28)
    assert (images.max(axis=(2, 3)) > 100).all()
    columns = images.sum(axis=2) @ np.arange(28) / images.sum(axis=(2, 3))
    assert np.abs(columns - 13.5).max() < 3
    assert all(len(np.unique(face.reshape(62, -1), axis=0)) == 62 for face in images)


def test_what_is_held_back_does_not_depend_on_other_families(folder):
    both = catalog.load("typefaces", folder)
    shutil.rmtree(folder / "fontsource-mono-1.0.0")
    alone = catalog.load("typefaces", folder)
    assert np.array_equal(alone.x_test, both.x_test[both.groups_test == "sans"])


def test_licences_stay_with_the_data(folder):
    catalog.load("typefaces", folder)
    (kept,) = cache_dir().glob("data/*/typefaces-*/licences")
    assert {path.name: path.read_text() for path in kept.iterdir()} == {
        f"fontsource-{family}-1.0.0.txt": f"licence of {family}" for family in FAMILIES
    }


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda p: (p / "files" / "mono-latin-400-normal.woff2").write_bytes(b"no font"), "not a typeface"),
        (lambda p: [file.unlink() for file in sorted((p / "files").iterdir())[1:]], "'mono' has 1 face"),
    ],
)
def test_damaged_families_are_named(folder, spoil, told):
    spoil(folder / "fontsource-mono-1.0.0" / "package")
    with pytest.raises(InvalidData, match=told):
        catalog.load("typefaces", folder)


def test_each_family_is_tested_on_its_own_faces(folder):
    table = {"data": f"typefaces:{folder}", "backbone": "pixels", "partitions": ["by_group"], "methods": ["local"]}
    _, run = runs_of(Experiment.of(table | {"test": "standard"}))
    prepared = run.scenario.prepare()
    data = prepared.data
    assert [client.name for client in prepared.clients] == ["mono", "sans"]
    for client in prepared.clients:
        assert np.array_equal(client.x_test, data.x_test[data.groups_test == client.name])
        assert len(client.x) == 3 * 62
    fit = prepared.fit(run.method)
    assert prepared.score(fit).tested == {"mono": 62, "sans": 62}
    assert prepared.centralised(1.0, intercept=True).tested == {"mono": 62, "sans": 62}


def test_own_test_faces_can_be_pooled_with_the_rest(folder):
    data = catalog.load("typefaces", folder)
    pooled = data.pooled()
    assert pooled.groups_test is None
    assert len(pooled) == len(pooled.groups) == 2 * 4 * 62
    assert len(data.sample(100, pool=True).groups) == 100
    parts = fg.partition.by_group(pooled.groups)
    assert [len(client.x_test) for client in fg.make_clients(pooled, parts)] == [50, 50]
