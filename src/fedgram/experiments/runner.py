"""Runs, one after the other, each written down as it ends. One that fails is written down too, and the rest goes on."""

import os
import platform
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Protocol

import numpy as np
import scipy

from fedgram.core.errors import FedgramError, JournalError, Mismatch, MissingExtra, UnknownName
from fedgram.engines import InProcess
from fedgram.evaluation import Evaluation
from fedgram.experiments import journal
from fedgram.experiments.grid import Run, Setting
from fedgram.experiments.journal import FAILED, OK, Journal
from fedgram.experiments.matrices import recorded
from fedgram.experiments.measure import peak_memory, reset_peak_memory
from fedgram.experiments.prepare import Prepared, prepare
from fedgram.experiments.results import UNREADABLE, Result, Spread, unreadable
from fedgram.protocol.clients import Progress

SCHEMA = 1
# Steps that belong to every run and say nothing about rounds.
_AROUND = ("hello", "receive", "evaluate")


class Watcher(Protocol):
    """Someone who looks on: a progress bar, or nobody."""

    def prepares(self, setting: Setting) -> None:
        """Hear that data are loaded, which may show progress of its own."""

    def starts(self, run: Run) -> None:
        """Hear that a run begins."""

    def steps(self, run: Run, round: int, step: str, done: int, total: int) -> None:
        """Hear that a client has replied; rounds count from 1."""

    def ends(self, run: Run, record: dict[str, Any]) -> None:
        """Hear that a run has ended, well or not."""


@dataclass
class Outcome:
    """How it went."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    used: dict[str, str] = field(default_factory=dict)  # of tables, which columns are what


@dataclass(frozen=True)
class Finished:
    """What a results file holds already."""

    keys: frozenset[str] = frozenset()
    settings: frozenset[str] = frozenset()
    fingerprints: frozenset[tuple[str, str]] = frozenset()


def finished(path: Path) -> tuple[Finished, list[journal.Damage]]:
    """Return what a results file holds, and the lines that a report would leave out; failed runs are not finished."""
    done: list[Result] = []
    settings: list[str] = []
    damaged: list[journal.Damage] = []
    for line in journal.read(path):
        if isinstance(line, journal.Damage):
            damaged.append(line)
            continue
        try:
            if line.is_run:
                done.append(Result.of(line.record))
            else:
                Spread.of(line.record)
                settings.append(str(line.record.get("setting")))
        except UNREADABLE as error:
            damaged.append(unreadable(path, line, error))
    good = [run for run in done if run.error is None]
    found = Finished(
        frozenset(run.key for run in good),
        frozenset(settings),
        frozenset((run.setting, run.fingerprint) for run in good),
    )
    return found, damaged


def execute(
    runs: Sequence[Run],
    path: Path,
    *,
    done: Finished | None = None,
    watcher: Watcher,
    engine: InProcess | None = None,
    title: str | None = None,
) -> Outcome:
    """Perform the runs that are not done yet and append them to the results file; None done begins it anew."""
    before = done or Finished()
    outcome = Outcome()
    left = [run for run in runs if run.key not in before.keys]
    with Journal(path, overwrite=done is None) as file:
        for setting, group in groupby(left, key=lambda run: run.setting):
            watcher.prepares(setting)
            prepared = _prepared(setting, before)
            if isinstance(prepared, Prepared):
                if setting.key not in before.settings:
                    file.append(setting_record(prepared, title))
                if prepared.data.about:
                    outcome.used[setting.data] = prepared.data.about
            for run in group:
                watcher.starts(run)
                record = _perform(run, prepared, watcher, engine or InProcess())
                file.append(record)
                watcher.ends(run, record)
                outcome.done += 1
                outcome.warnings.update(record.get("warnings", ()))
                if record["status"] == FAILED:
                    outcome.failed[f"{run.label}: {setting.describe()}"] = record["error"]
    return outcome


def _prepared(setting: Setting, before: Finished) -> Prepared | Exception:
    try:
        prepared = prepare(setting)
    except (UnknownName, MissingExtra):
        raise  # the description is wrong, or this machine cannot do it: no other setting would fare better
    except Exception as error:
        return error
    for key, fingerprint in before.fingerprints:
        if key == setting.key and fingerprint != prepared.fingerprint:
            raise Mismatch(
                f"the data of {setting.describe()} have changed since the results were begun: fingerprint "
                f"{prepared.fingerprint!r}, before {fingerprint!r}; write to another folder with --out"
            )
    return prepared


def _perform(run: Run, prepared: Prepared | Exception, watcher: Watcher, engine: InProcess) -> dict[str, Any]:
    record = _description(run)
    started = perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if isinstance(prepared, Exception):
                raise prepared
            record |= {"fingerprint": prepared.fingerprint, "clients": len(prepared.clients)}
            record |= _measured(run, prepared, watcher, engine) | {"status": OK}
        except JournalError:
            raise
        except Exception as error:
            told = str(error) if isinstance(error, FedgramError) else f"{type(error).__name__}: {error}"
            record |= {"status": FAILED, "error": told}
    record["total_seconds"] = round(perf_counter() - started, 4)
    record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    if caught:
        record["warnings"] = sorted({str(warning.message) for warning in caught})
    return record


def _measured(run: Run, prepared: Prepared, watcher: Watcher, engine: InProcess) -> dict[str, Any]:
    reset_peak_memory()
    names = [client.name for client in prepared.clients]
    if run.method is None:
        started = process_time()
        evaluation = prepared.centralised(run.ridge, intercept=run.intercept)
        spent = round(process_time() - started, 6)
        return _accuracies(evaluation, names) | {"cpu_seconds": {"server": spent}, "peak_memory": peak_memory()}
    fit = run.method.fit(
        prepared.clients,
        classes=prepared.data.classes,
        seed=run.setting.seed,
        engine=engine,
        require=run.require,
        progress=_rounds_counted(run, watcher),
    )
    traffic = fit.traffic.by_client
    measured = {
        "up": [traffic.get(name, {}).get("up", 0) for name in names],
        "down": [traffic.get(name, {}).get("down", 0) for name in names],
        "cpu_seconds": {who: round(seconds, 6) for who, seconds in fit.cpu_seconds.items()},
        "seconds": round(fit.seconds, 6),
        "peak_memory": peak_memory(),
        "engine": fit.engine,
        "contributors": len(fit.contributors),
        "absent": dict(fit.absent),
    }
    if fit.rounds:
        reports = [evaluation.summary() for evaluation in fit.rounds]
        measured["rounds"] = {name: [round(report[name], 6) for report in reports] for name in reports[0]}
    if matrices := recorded(fit, names):
        measured["matrices"] = matrices
    judged = prepared.evaluation(fit)
    return measured | (_accuracies(judged, names) if judged else {})


def _accuracies(evaluation: Evaluation, names: list[str]) -> dict[str, Any]:
    """Return counts in the order of the clients; a client that was lost has none."""
    if not any(evaluation.tested.values()):
        return {}
    judges = names if set(evaluation.tested) <= set(names) else list(evaluation.tested)
    return {
        "accuracy": evaluation.summary(),
        "correct": [evaluation.correct.get(name, 0) for name in judges],
        "tested": [evaluation.tested.get(name, 0) for name in judges],
        "untested": evaluation.untested,
    }


def _rounds_counted(run: Run, watcher: Watcher) -> Progress:
    """Tell the watcher which round it is: how often the step that comes most has begun."""
    begun: Counter[str] = Counter()

    def progress(step: str, done: int, total: int) -> None:
        if done == 1 and step not in _AROUND:
            begun[step] += 1
        watcher.steps(run, max(begun.values(), default=0), step, done, total)

    return progress


def _description(run: Run) -> dict[str, Any]:
    return {
        "kind": "run",
        "schema": SCHEMA,
        "key": run.key,
        "setting": run.setting.key,
        "label": run.label,
        "method": run.name,
        "settings": run.settings,
        "reference": run.method is None,
        **asdict(run.setting),
        "require": run.require,
        "versions": versions(),
    }


def setting_record(prepared: Prepared, title: str | None = None) -> dict[str, Any]:
    """Return what is the same for all methods: the clients' names and how many samples of each class they have."""
    return {
        "kind": "setting",
        "schema": SCHEMA,
        "setting": prepared.setting.key,
        "title": title,
        **asdict(prepared.setting),
        "clients": len(prepared.clients),
        "fingerprint": prepared.fingerprint,
        "classes": list(prepared.data.classes),
        "names": [client.name for client in prepared.clients],
        "class_counts": prepared.class_counts,
    }


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    import fedgram

    return {
        "fedgram": fedgram.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
