"""Loading data as scenarios name them: data sets by name, files, and tables under a study, each opened once."""

from dataclasses import dataclass, replace
from typing import Any

from fedgram.core.columns import Columns
from fedgram.core.errors import FedgramError, InvalidParameter
from fedgram.data import load_dataset
from fedgram.data.dataset import Dataset
from fedgram.data.own.bad import OnBad
from fedgram.data.own.cells import POINT, Notation
from fedgram.features import load_features, load_samples
from fedgram.studies import Study
from fedgram.studies.loading import State, StudyDataset, drafted, names_in, narrowed, read_tables, tables_of


@dataclass(frozen=True)
class Source:
    """The description of data to open. Equal sources give equal data: `state` changes when files change."""

    data: str
    label: str | None
    client: str | None
    on_bad: OnBad
    clients: int
    seed: int
    study: str | None
    columns: str | None
    drop: str | None
    test_data: str | None
    notation: Notation
    state: tuple[State, ...]

    @property
    def wants_study(self) -> bool:
        """Whether a setting was given that only studies know."""
        given = (self.study, self.columns, self.drop, self.test_data)
        return any(value is not None for value in given) or self.notation != POINT


class Loader:
    """Data sets as scenarios name them. Each source is opened once; the last one stays in memory.

    A file that has changed since is another source.
    """

    def __init__(self) -> None:
        self._facts: dict[Source, tuple[bool, Columns]] = {}
        self._opened: tuple[Source, Dataset] | None = None
        self._loaded: tuple[tuple[Any, ...], Dataset] | None = None

    def has_groups(self, source: Source) -> bool:
        """Return whether the samples have owners; False of data that cannot be opened, which loading will explain."""
        return self._look(source)[0]

    def outcomes(self, source: Source) -> Columns:
        """Return the numeric outcomes, () for classes; an agreed study names them, so its tables are not opened."""
        if source.study is None:
            return self._look(source)[1] if tables_of(source.data) else ()
        try:
            return Study.read(source.study).numeric_outcomes
        except (FedgramError, OSError):
            return ()  # loading will explain

    def load(
        self, source: Source, backbone: str | None, *, as_features: bool, samples: int | None, own_test: bool
    ) -> Dataset:
        """Return the data set as features, or with its samples as they are."""
        asked = (source, backbone, as_features, samples, own_test)
        if self._loaded is None or self._loaded[0] != asked:
            self._loaded = None  # one copy of the data is enough
            data = self._open(source)
            self._opened = None
            if as_features:
                data = load_features(data, backbone=backbone, samples=samples, own_test=own_test)
            else:
                data = load_samples(data, samples=samples, own_test=own_test)
            self._loaded = asked, data
        return self._loaded[1]

    def _look(self, source: Source) -> tuple[bool, Columns]:
        if source not in self._facts:
            try:
                data = self._open(source)
                targets = data.study.numeric_outcomes if isinstance(data, StudyDataset) else ()
                self._facts[source] = data.groups is not None, targets
            except (FedgramError, OSError):
                self._facts[source] = False, ()
        return self._facts[source]

    def _open(self, source: Source) -> Dataset:
        if self._opened is None or self._opened[0] != source:
            self._opened = None
            self._opened = source, _open(source)
        return self._opened[1]


def _open(source: Source) -> Dataset:
    """Return the data set; tables are read under their study, or one that is drafted from the table."""
    return _under_study(source) if source.wants_study or tables_of(source.data) else _as_it_is(source)


def _as_it_is(source: Source) -> Dataset:
    return load_dataset(
        source.data,
        label=source.label,
        group=source.client,
        on_bad=source.on_bad,
        clients=source.clients,
        seed=source.seed,
    )


def _under_study(source: Source) -> Dataset:
    columns, drop = names_in(source.columns), names_in(source.drop) or ()
    study = _study(source, columns, drop)
    data = read_tables(
        study, source.data, client=source.client, test=source.test_data, on_bad=source.on_bad, notation=source.notation
    )
    return data if source.study is not None else replace(data, about=f"study drafted from the table: {data.about}")


def _study(source: Source, columns: tuple[str, ...] | None, drop: tuple[str, ...]) -> Study:
    """Return the study that was agreed on, or one drafted from the table."""
    if source.study is not None:
        study = Study.read(source.study)
        if source.label not in (None, *study.outcomes):
            raise InvalidParameter(
                f"label {source.label!r}, and the outcome of study {study.name!r} is {', '.join(study.outcomes)}: "
                "leave the label out"
            )
        return study if columns is None and not drop else narrowed(study, columns, drop)
    tables = tables_of(source.data)
    if len(tables) != 1:
        raise InvalidParameter(
            f"data {source.data!r}: expected one table, got {len(tables) or 'none'}; several need a study that "
            "describes their columns: draft one by fedgram study new, and give it with --study"
        )
    label = None if source.label is None else source.label.strip()
    return drafted(tables[0], label, client=source.client, columns=columns, drop=drop, notation=source.notation)
