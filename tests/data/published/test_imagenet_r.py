"""ImageNet-R from the user's folder or as its archive, on a small tree in exactly its layout."""

import hashlib
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fedgram.core.errors import InvalidData
from fedgram.data.own.images import open_image_folder
from fedgram.data.published import catalog
from fedgram.data.published.catalog import Published
from fedgram.data.published.downloads import File, Home

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="session")
def photographs() -> npt.NDArray[np.uint8]:
    """Twelve real ones, read before the tests' empty cache takes over."""
    return np.array(catalog.load("cifar10").x[:12])


@pytest.fixture
def renditions(tmp_path: Path, photographs: npt.NDArray[np.uint8]) -> Path:
    """Three classes of ImageNet-R's layout: images of any size, one of them grey, and a text beside the folders."""
    root = tmp_path / "imagenet-r"
    for i, wnid in enumerate(("n12144580", "n01443537", "n02088094")):
        (root / wnid).mkdir(parents=True)
        for j in range(i + 1):
            image = Image.fromarray(photographs[4 * i + j]).resize((300 + 10 * j, 250))
            (image.convert("L") if i == 0 else image).save(root / wnid / f"art_{j}.jpg", quality=95)
    (root / "README.txt").write_text("ImageNet-R")
    return root


@pytest.mark.parametrize("directly", [True, False])
def test_imagenet_r(renditions: Path, directly: bool) -> None:
    data = catalog.load("imagenet-r", root=renditions if directly else renditions.parent)
    assert data.classes == ("n01443537", "n02088094", "n12144580")
    assert data.y.tolist() == [0, 0, 1, 1, 1, 2]
    assert data.x.shape == (6, 224, 224, 3)
    assert data.x_test is None
    # The same as any folder of images gives, which crops at the centre.
    own = open_image_folder(renditions, (224, 224), "refuse")
    np.testing.assert_array_equal(data.x[:], own.x[:])
    assert (data.x[5][..., 0] == data.x[5][..., 2]).all()


def test_imagenet_r_as_its_archive(renditions: Path, tmp_path: Path) -> None:
    archive = tmp_path / "own" / "imagenet-r.tar"
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.add(renditions, arcname="imagenet-r")
    entry = catalog.CATALOG["imagenet-r"].published
    assert entry is not None
    mine = File("imagenet-r.tar", f"md5:{hashlib.md5(archive.read_bytes()).hexdigest()}")
    as_if = Published("imagenet-r", entry.layouts, (Home("https://example.org/", (mine,)),))
    assert len(as_if.load(archive.parent)) == 6


def test_imagenet_r_with_an_empty_class_names_it(renditions: Path) -> None:
    (renditions / "n03000000").mkdir()
    with pytest.raises(InvalidData, match=r"n03000000 has no .jpg files: the data set is not complete"):
        catalog.load("imagenet-r", root=renditions)
