"""Data as a scenario names them, opened once: data sets by name, files, and tables under a study."""

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache

from fedgram.core.columns import Columns
from fedgram.core.errors import BadSamples, InvalidParameter, NumericLabels
from fedgram.data import load_dataset
from fedgram.data.dataset import Dataset
from fedgram.data.own.bad import OnBad
from fedgram.features import load_features, load_samples
from fedgram.studies import Study
from fedgram.studies.loading import State, StudyDataset, drafted, names_in, narrowed, read_tables, tables_of


@dataclass(frozen=True)
class Source:
    """What data are opened from. Two that are equal give the same data: `state` tells files that have changed."""

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
    state: tuple[State, ...]

    @property
    def wants_study(self) -> bool:
        """Whether a setting was given that only studies know."""
        return any(value is not None for value in (self.study, self.columns, self.drop, self.test_data))


@lru_cache(maxsize=1)
def open_source(source: Source) -> Dataset:
    """Return the data set. A table that is not all numbers, or whose outcome has fractions, gets a study.

    It is drafted from the table if none is given.
    """
    if source.wants_study or len(tables_of(source.data)) > 1:
        return _under_study(source)
    if not tables_of(source.data):
        return _as_it_is(source)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            data = _as_it_is(source)
        except (BadSamples, NumericLabels):
            data = None
    if data is None:  # whatever the attempt warned of, reading it under a study warns of again
        return _under_study(source)
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return data


@lru_cache(maxsize=1)
def load_source(
    source: Source, backbone: str | None, as_features: bool, samples: int | None, own_test: bool
) -> Dataset:
    """Return the data set as features, or with its samples as they are."""
    data = open_source(source)
    open_source.cache_clear()  # one copy of the data is enough
    if as_features:
        return load_features(data, backbone=backbone, samples=samples, own_test=own_test)
    return load_samples(data, samples=samples, own_test=own_test)


@lru_cache(maxsize=256)  # every run of an experiment asks
def outcomes_of(source: Source) -> Columns:
    """Return the numeric outcomes of a source; an agreed study says them without a look at the tables."""
    if source.study is not None:
        return Study.read(source.study).targets
    data = open_source(source) if tables_of(source.data) else None
    return data.study.targets if isinstance(data, StudyDataset) else ()


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
    data = read_tables(study, source.data, client=source.client, test=source.test_data, on_bad=source.on_bad)
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
            f"data {source.data!r} are no single table, so there must be a study that says what their columns are: "
            "draft one by fedgram study new, and give it with --study"
        )
    label = None if source.label is None else source.label.strip()
    return drafted(tables[0], label, client=source.client, columns=columns, drop=drop)
