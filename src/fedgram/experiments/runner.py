"""Runs, one after the other, each written down as it ends. One that fails is written down too, and the rest goes on."""

import os
import platform
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy

from fedgram.core.errors import FedgramError, Mismatch, MissingExtra, UnknownName
from fedgram.engines import InProcess
from fedgram.evaluation import Evaluation
from fedgram.experiments.experiment import Run
from fedgram.experiments.journal import FAILED, OK, Damage, Journal
from fedgram.experiments.loader import Loader
from fedgram.experiments.prepared import Prepared
from fedgram.experiments.results import Result, Spread, read_results, recorded_evaluation, recorded_matrices
from fedgram.experiments.scenario import Scenario
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Engine
from fedgram.protocol.transport import Progress

SCHEMA = 1
_LINUX = Path("/proc/self")
UNFINISHED = "unfinished"  # folder with the states of runs that were interrupted
# Categories that Python hides by default: engines and libraries use them to warn their own developers.
NOT_FOR_USERS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


class Watcher(Protocol):
    """An observer of runs, such as a progress bar; by itself it ignores all events."""

    def prepares(self, scenario: Scenario) -> None:
        """Hear that data are loaded, which may show progress of its own."""

    def starts(self, run: Run) -> None:
        """Hear that a run begins."""

    def steps(self, run: Run, step: str, round: int, done: int, total: int) -> None:
        """Hear that a step begins, or a client has replied; rounds count from 0."""

    def ends(self, run: Run, record: dict[str, Any]) -> None:
        """Hear that a run has ended, well or not."""


@dataclass
class Outcome:
    """Counts of finished and failed runs, with their errors and warnings."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    used: dict[str, str] = field(default_factory=dict)  # by table: a text on the use of its columns


@dataclass(frozen=True)
class Finished:
    """The runs and settings that a results file already holds."""

    keys: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()  # by themselves, not because their data could not be prepared
    settings: frozenset[str] = frozenset()
    fingerprints: frozenset[tuple[str, str]] = frozenset()
    numeric: bool | None = None  # whether outcomes are numbers; None for an empty file


def finished(path: Path) -> tuple[Finished, list[Damage]]:
    """Return the content of a results file, and the damaged lines; failed runs are not finished."""
    lines = list(read_results(path))
    runs = [run for run in lines if isinstance(run, Result)]
    good = [run for run in runs if run.error is None]
    keys = frozenset(run.key for run in good)
    found = Finished(
        keys,
        frozenset(run.key for run in runs if not run.unprepared) - keys,
        frozenset(spread.setting for spread in lines if isinstance(spread, Spread)),
        frozenset((run.setting, run.fingerprint) for run in good),
        good[0].is_numeric if good else None,
    )
    return found, [line for line in lines if isinstance(line, Damage)]


class Kept(Journal):
    """A results file to which runs are added as they end. `done` is its content; None begins it anew."""

    def __init__(self, path: Path, done: Finished | None, title: str | None = None) -> None:
        super().__init__(path, overwrite=done is None)
        self._done, self._title = done or Finished(), title

    def begin(self, scenario: Scenario, prepared: Prepared) -> None:
        """Record the clients' class counts, unless they are there; raise if earlier results had other data.

        Numbers and classes are not judged by the same figures, so they do not go into one file.
        """
        numeric = bool(prepared.units)
        if self._done.numeric not in (None, numeric):
            there, here = ("numeric outcomes", "classes") if not numeric else ("classes", "numeric outcomes")
            raise Mismatch(
                f"{self.path} has results for {there}, and {scenario.data} has {here}: write to another folder with "
                "--out"
            )
        for key, fingerprint in self._done.fingerprints:
            if key == scenario.key and fingerprint != prepared.fingerprint:
                raise Mismatch(
                    f"the data of {scenario.describe()} have changed since the results were begun: fingerprint "
                    f"{prepared.fingerprint!r}, before {fingerprint!r}; write to another folder with --out"
                )
        if scenario.key not in self._done.settings:
            self.append(setting_record(scenario, prepared, self._title))


class Attempt(NamedTuple):
    """A run that has ended: its record, and either what came of it (the reference has no fit) or its error."""

    record: dict[str, Any]
    fit: Fit | None = None
    evaluation: Evaluation | None = None
    error: Exception | None = None


def execute(
    runs: Sequence[Run],
    path: Path,
    *,
    done: Finished | None = None,
    watcher: Watcher,
    engine: Engine | None = None,
    title: str | None = None,
    loader: Loader | None = None,
) -> Outcome:
    """Perform the runs that are not done yet and append them to the results file; `done` None begins the file anew.

    With the `loader` of `runs_of`, data that it has opened are not opened again.

    An engine that can be opened, as a simulation can, is opened once for each scenario.
    """
    outcome, loader = Outcome(), loader or Loader()
    engine = engine or InProcess()
    unfinished = path.parent / UNFINISHED
    if done is None:
        shutil.rmtree(unfinished, ignore_errors=True)
    settled = (run if run.scenario.partition else run.resolve(loader) for run in runs)
    left = [run for run in settled if done is None or run.key not in done.keys]
    with Kept(path, done, title) as kept:
        for scenario, group in groupby(left, key=lambda run: run.scenario):
            watcher.prepares(scenario)
            prepared = _prepared(scenario, loader)
            if isinstance(prepared, Prepared):
                kept.begin(scenario, prepared)
                if prepared.data.about:
                    outcome.used[scenario.data] = prepared.data.about
            with engine if isinstance(engine, AbstractContextManager) else nullcontext():
                for run in group:
                    watcher.starts(run)
                    saving = _saving(engine, unfinished / f"{run.key}.checkpoint")
                    record = attempt(run, prepared, saving, partial(watcher.steps, run)).record
                    kept.append(record)
                    watcher.ends(run, record)
                    outcome.done += 1
                    outcome.warnings.update(record.get("warnings", ()))
                    if record["status"] == FAILED:
                        outcome.failed[f"{run.label}: {scenario.describe()}"] = record["error"]
    with suppress(OSError):  # it is not there, or holds the state of a run that failed
        unfinished.rmdir()
    return outcome


def _saving(engine: Engine, checkpoint: Path) -> Engine:
    """Return the engine with a file for the state of a run that is interrupted, if it can keep one."""
    return replace(engine, checkpoint=checkpoint) if isinstance(engine, InProcess) else engine


def _prepared(scenario: Scenario, loader: Loader) -> Prepared | Exception:
    try:
        return scenario.prepare(loader)
    except (UnknownName, MissingExtra):
        raise  # the description is wrong, or this machine cannot do it: no other scenario would fare better
    except Exception as error:
        return error


def attempt(run: Run, prepared: Prepared | Exception, engine: Engine, progress: Progress) -> Attempt:
    """Perform a run; an error ends the run, not the program, and is written down."""
    ended = Attempt(description(run))
    record = ended.record
    started = perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kind in NOT_FOR_USERS:
            warnings.simplefilter("ignore", kind)
        try:
            if isinstance(prepared, Exception):
                raise prepared
            record |= {"fingerprint": prepared.fingerprint, "clients": _crowd(run.scenario, prepared)}
            measured, fit, evaluation = _measured(run, prepared, engine, progress)
            record |= measured | {"status": OK}
            ended = ended._replace(fit=fit, evaluation=evaluation)
        except Exception as error:
            ended = ended._replace(error=error)
            told = str(error) if isinstance(error, FedgramError) else f"{type(error).__name__}: {error}"
            record |= {"status": FAILED, "error": told}
            if isinstance(prepared, Exception):
                record["unprepared"] = True
    record["total_seconds"] = round(perf_counter() - started, 4)
    record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    if caught:
        record["warnings"] = sorted({str(warning.message) for warning in caught})
    return ended


def _measured(
    run: Run, prepared: Prepared, engine: Engine, progress: Progress
) -> tuple[dict[str, Any], Fit | None, Evaluation]:
    """Return the measured fields of a run's record, its fit (the reference has none) and its evaluation."""
    reset_peak_memory()
    names = prepared.names
    if run.method is None:
        started = process_time()
        reference = prepared.centralised(run.ridge, intercept=run.intercept)
        spent = round(process_time() - started, 6)
        costs = {"cpu_seconds": {"server": spent}, "peak_memory": peak_memory()}
        return recorded_evaluation(reference, names, prepared.units) | costs, None, reference
    fit = prepared.fit(run.method, engine=engine, require=run.require, progress=progress)
    peak, traffic = peak_memory(), fit.traffic.by_client
    evaluation = prepared.score(fit)
    measured = fit.report(evaluation) | recorded_evaluation(evaluation, names, prepared.units)
    measured |= {way: [traffic.get(name, {}).get(way, 0) for name in names] for way in ("up", "down")}
    measured |= {"peak_memory": peak, "contributors": len(fit.contributors), "features": prepared.data.features}
    if curves := prepared.curves(run.method, fit):
        measured["rounds"] = curves
    if matrices := recorded_matrices(fit, names):
        measured["matrices"] = matrices
    return measured, fit, evaluation


def description(run: Run) -> dict[str, Any]:
    """Return the part of a run's record that is known before the run begins."""
    return {
        "kind": "run",
        "schema": SCHEMA,
        "key": run.key,
        "setting": run.scenario.key,
        "label": run.label,
        "method": run.name,
        "settings": run.settings,
        "revision": run.revision,
        "reference": run.method is None,
        "personal": run.method is not None and run.method.personal,
        **asdict(run.scenario),
        "require": run.require,
        "versions": versions(),
    }


def setting_record(scenario: Scenario, prepared: Prepared, title: str | None = None) -> dict[str, Any]:
    """Return the record of a setting, which is the same for all methods.

    It has the clients' names, their class counts, and the score of a prediction that knows only these counts.
    """
    return {
        "kind": "setting",
        "schema": SCHEMA,
        "setting": scenario.key,
        "title": title,
        **asdict(scenario),
        "clients": _crowd(scenario, prepared),
        "fingerprint": prepared.fingerprint,
        "classes": list(prepared.data.classes),
        **({"outcomes": prepared.units} if prepared.units else {}),
        "names": prepared.names,
        "class_counts": prepared.class_counts,
        **_most_frequent(prepared),
    }


def _crowd(scenario: Scenario, prepared: Prepared) -> int:
    """Return the number of clients as the setting has it, which all seeds share; drawn ones may have no samples."""
    return scenario.clients if scenario.counts_clients else len(prepared.clients)


def _most_frequent(prepared: Prepared) -> dict[str, Any]:
    """Return the score of clients that always predict their own most frequent class; {} if they are not tested."""
    if prepared.units or not prepared.tested_by_clients:
        return {}
    return {"most_frequent": recorded_evaluation(prepared.most_frequent(), prepared.names, {})}


@cache
def versions() -> Mapping[str, str]:
    """Return the versions that a result may depend on."""
    import fedgram

    return {
        "fedgram": fedgram.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        **_installed("torch", "onnxruntime"),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _installed(*packages: str) -> dict[str, str]:
    """Return the versions of the packages that are installed, without importing them."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def reset_peak_memory() -> None:
    """Start counting anew, where the system can (Linux)."""
    try:
        (_LINUX / "clear_refs").write_text("5")
    except OSError:
        return


def peak_memory() -> int | None:
    """Return the most bytes this process has held in memory: since the reset on Linux, since its start elsewhere."""
    try:
        for line in (_LINUX / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
