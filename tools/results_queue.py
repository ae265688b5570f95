"""Works through tools/queue.toml, a list of experiments, most valuable first: `make results-queue`.

    python tools/results_queue.py run           continues where it stopped; Ctrl-C ends it
    python tools/results_queue.py status        prints finished and open runs, and whether every entry can start
    python tools/results_queue.py pause         stops the current run at once; it keeps its memory
    python tools/results_queue.py continue      continues the current run
    python tools/results_queue.py stop          ends a queue in the background, and frees its memory
    python tools/results_queue.py retry NAME    forgets the failed runs of docs/results/data/NAME.jsonl

An entry of the queue is one `fedgram compare`, at the lowest priority. The file is read again after each of them:

    [[entries]]
    file = "examples/fedacnnl-figure-6.toml"
    options = ["--samples", "12000"]  # of `fedgram compare`; none by default
    keep = "fedacnnl-figure-6"        # runs are added to docs/results/data/fedacnnl-figure-6.jsonl as each ends
    memory = "18 GB"                  # while less is free, the next entry comes first; 2 GB by default
    hours = 0.7                       # of CPU time for all runs of the entry, a guess that finished runs replace
    threads = 1                       # of BLAS and torch; 1 by default

A run is open if neither the queue's folder nor the kept records have its key. A run that fails is not repeated, and a
run that ends its process twice counts as failed. `kill -9` loses only the current run; if only the queue is killed,
the run goes on, and the next queue waits for it.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

import results as kept_results

from fedgram.core.cache import cache_dir
from fedgram.core.errors import FolderInUse
from fedgram.core.filesystem import only_writer, replace_file
from fedgram.experiments import journal

ROOT = Path(__file__).parent.parent
PROGRAM = (sys.executable, "-c", "from fedgram.cli import main; main()")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
POLL, LOOK_AGAIN, GRACE = 0.5, 30.0, 20.0  # seconds: between checks of a run, for free memory, for a run to end
MOST_CRASHES = 2
PAUSED = "paused"  # a file in the queue's folder
KINDS = {"file": (str,), "keep": (str,), "hours": (int, float), "options": (list,), "memory": (str,), "threads": (int,)}


class Broken(Exception):
    """Error of an entry, or of a whole queue file, that cannot be used."""


@dataclass(frozen=True)
class Entry:
    """One `fedgram compare` of the queue."""

    file: str
    keep: str
    hours: float
    options: tuple[str, ...] = ()
    memory: str = "2 GB"
    threads: int = 1

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Entry":
        """Check an entry of the file."""
        about = f"entry {table.get('keep') or table.get('file')!r}"
        for name, value in table.items():
            if name not in KINDS:
                raise Broken(f"{about}: expected {', '.join(KINDS)}, got {name!r}; correct its name")
            if not isinstance(value, KINDS[name]) or isinstance(value, bool):
                raise Broken(
                    f"{about}: {name}: expected another kind of value, got {value!r}; see tools/results_queue.py"
                )
        if missing := {one.name for one in fields(cls)} - {"options", "memory", "threads"} - table.keys():
            raise Broken(f"{about}: expected {', '.join(sorted(missing))}, got nothing; add it")
        entry = cls(**dict(table) | {"options": tuple(map(str, table.get("options", ())))})
        if Path(entry.keep).name != entry.keep:
            raise Broken(f"{about}: keep: expected the name of a file, got {entry.keep!r}; leave folders out")
        _ = entry.bytes
        return entry

    @property
    def bytes(self) -> float:
        """The memory that must be free."""
        number, _, unit = self.memory.partition(" ")
        try:
            return float(number) * UNITS[unit]
        except (ValueError, KeyError):
            raise Broken(f"entry {self.keep!r}: memory: expected a number of MB or GB, got {self.memory!r}") from None

    def __str__(self) -> str:
        return " ".join([self.file, *self.options])


@dataclass(frozen=True)
class Plan:
    """The runs of an entry by the current code, and the existing records."""

    entry: Entry
    runs: Sequence[Mapping[str, Any]] = ()
    found: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    error: str = ""

    @property
    def left(self) -> list[Mapping[str, Any]]:
        """The runs without a record."""
        return [run for run in self.runs if run["key"] not in self.found]

    @property
    def failed(self) -> list[Mapping[str, Any]]:
        """The records of the runs that failed."""
        return [record for record in self._own if not journal.went_well(record)]

    @property
    def spent(self) -> float:
        """CPU seconds of the finished runs."""
        return sum(map(_cpu, self._own))

    @property
    def ahead(self) -> float:
        """CPU seconds of the open runs, estimated from finished runs of the same label, or from the entry."""
        by_label: dict[str, list[float]] = {}
        for record in self._own:
            if journal.went_well(record):
                by_label.setdefault(record["label"], []).append(_cpu(record))
        guess = 3600 * self.entry.hours / max(len(self.runs), 1)
        return sum(fmean(by_label.get(run["label"], [guess])) for run in self.left)

    @property
    def _own(self) -> list[Mapping[str, Any]]:
        return [self.found[run["key"]] for run in self.runs if run["key"] in self.found]


def _cpu(record: Mapping[str, Any]) -> float:
    return float(sum(record.get("cpu_seconds", {}).values()))


@dataclass(frozen=True)
class Place:
    """The files of a queue."""

    queue: Path
    folder: Path
    data: Path

    @property
    def paused(self) -> bool:
        """Whether the queue must pause."""
        return (self.folder / PAUSED).exists()

    def results(self, entry: Entry) -> Path:
        """Return the file for an entry's new runs."""
        return self.folder / entry.keep / "results.jsonl"

    def kept(self, entry: Entry) -> Path:
        """Return the file of an entry's kept records."""
        return self.data / f"{entry.keep}.jsonl"

    def keep(self, entry: Entry) -> None:
        """Add new runs to the kept records; while these have merge conflicts, later."""
        if found := _lines(self.results(entry)):
            self.data.mkdir(parents=True, exist_ok=True)
            try:
                kept_results.add(kept_results.slim(found), self.kept(entry))
            except SystemExit as error:
                say(f"not kept yet: {error}")

    def note(self, who: str, pid: int | None) -> None:
        """Note the current process, or its absence, for later queues and for `pause`, `continue` and `stop`."""
        path = self.folder / f"{who}.json"
        if pid is None:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, json.dumps({"pid": pid, "begun": _begun(pid)}).encode())

    def noted(self, who: str) -> int | None:
        """Return the noted process if it still runs; another process may have got its number."""
        try:
            about = json.loads((self.folder / f"{who}.json").read_bytes())
        except (OSError, ValueError):
            return None
        alive = about["begun"] is not None and _begun(about["pid"]) == about["begun"]
        return int(about["pid"]) if alive else None


def _begun(pid: int) -> str | None:
    """Return a process's start time, which tells it from a later process with its number; None if it has ended."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else others[18]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the runs and settings of a results file; a line that was cut short is mended by `--resume`.

    Runs whose data could not be prepared do not count: a download may work tomorrow.
    """
    lines = [line for line in journal.read(path) if isinstance(line, journal.Line)] if path.exists() else []
    return [line.record for line in lines if not line.record.get("unprepared")]


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a results file."""
    return [record for record in _lines(path) if record.get("kind", "run") == "run"]


def read_queue(path: Path) -> list[Entry]:
    """Return the entries of a queue file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("entries", [])
    except (OSError, ValueError) as error:
        raise Broken(f"{path}: expected a TOML file with [[entries]], got {error}; correct it") from error
    return [Entry.of(table) for table in tables]


def plans(place: Place) -> list[Plan]:
    """Return the plan of every entry, by the current code: that of a queue begun this morning may be outdated."""
    entries = read_queue(place.queue)
    asked = json.dumps([[entry.file, *entry.options] for entry in entries])
    command = [sys.executable, __file__, "list"]
    told = subprocess.run(command, input=asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode:
        raise Broken(f"cannot list the runs: {_last_line(told.stderr)}")
    return [_plan(place, entry, about) for entry, about in zip(entries, json.loads(told.stdout), strict=True)]


def _plan(place: Place, entry: Entry, about: Mapping[str, Any]) -> Plan:
    found: dict[str, Mapping[str, Any]] = {}
    for record in chain(_records(place.kept(entry)), _records(place.results(entry))):
        if record["key"] not in found or journal.went_well(record):
            found[record["key"]] = record
    return Plan(entry, about["runs"], found, about["error"])


def listed(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the runs of a `fedgram compare`, as their records begin, or the reason for their absence."""
    import typer

    from fedgram.cli import options
    from fedgram.cli.compare import compare, described
    from fedgram.experiments import runs_of
    from fedgram.experiments.runner import description
    from fedgram.protocol.parameters import read_require

    app = typer.Typer(add_completion=False)
    app.command()(compare)
    try:
        given = typer.main.get_command(app).make_context("compare", list(arguments)).params
        own = {name: given[name] for name in ("methods", "clients", "partition", "seeds", "set_")}
        require = None if given["require"] is None else read_require(given["require"])
        settings = options.given_settings(given)
        experiment = described(Path(given["file"]), settings=settings, require=require, **own)
        return {"runs": [description(run) for run in runs_of(experiment)], "error": ""}
    except Exception as error:
        say_more = getattr(error, "format_message", None)  # typer's own errors have it
        return {"runs": [], "error": say_more() if say_more else str(error)}


def next_entry(waiting: Sequence[Plan], free: float) -> Plan | None:
    """Return the first plan whose runs fit into memory."""
    return next((plan for plan in waiting if plan.entry.bytes <= free), None)


def memory(kind: str) -> float:
    """Return the machine's bytes of memory, MemTotal, or its free bytes, MemAvailable."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return float(line.split()[1]) * 1024
    raise Broken(f"/proc/meminfo: expected {kind}, got none; the queue needs Linux")


@dataclass
class Queue:
    """The running queue."""

    place: Place
    nice: int
    crashes: dict[str, int] = field(default_factory=dict)  # by a run's key
    given_up: dict[Entry, str] = field(default_factory=dict)

    def run(self) -> int:
        """Work until no open run can be done; return the exit code."""
        self._adopt()
        told = ""
        while True:
            self._while_paused(None)
            waiting = [plan for plan in self._plans() if plan.left and plan.entry not in self.given_up]
            if (plan := next_entry(waiting, memory("MemAvailable"))) is not None:
                say(f"{_ahead(waiting)} in all")
                self._work(plan)
            elif any(plan.entry.bytes <= memory("MemTotal") for plan in waiting):
                if told != (told := f"waiting for {waiting[0].entry.memory} of memory: {waiting[0].entry}"):
                    say(told)
                time.sleep(LOOK_AGAIN)
            else:
                break
        for plan in waiting:
            say(f"left out: {plan.entry} needs {plan.entry.memory}, more than this machine has")
        for entry, why in self.given_up.items():
            say(f"left out: {entry}: {why}")
        return 1 if waiting or self.given_up else 0

    def _plans(self) -> list[Plan]:
        """Return the plans; wait while the file is being edited."""
        while True:
            try:
                found = plans(self.place)
                break
            except Broken as error:
                say(f"{error}; looking again in {LOOK_AGAIN:.0f} s")
                time.sleep(LOOK_AGAIN)
        for plan in found:
            self.place.keep(plan.entry)  # a queue may have been killed before it did
        self.given_up = {entry: why for entry, why in self.given_up.items() if entry in [plan.entry for plan in found]}
        self.given_up |= {plan.entry: plan.error for plan in found if plan.error}
        return found

    def _work(self, plan: Plan) -> None:
        """Run the open runs of an entry, until its process ends."""
        entry, place = plan.entry, self.place
        say(f"{entry}: {_ahead([plan])}")
        self._bring_back(plan)
        wanted = (f"nice -n {self.nice}", "ionice -c 3")
        priority = [words for words in wanted if self.nice and shutil.which(words.split()[0])]
        command = [*" ".join(priority).split(), *PROGRAM, "compare", entry.file, *entry.options]
        command += ["--out", str(place.results(entry).parent), "--resume", "--skip-failed", "--wait"]
        log = place.results(entry).parent / "log.txt"
        with log.open("ab") as stream:
            environment = os.environ | dict.fromkeys(THREADS, str(entry.threads))
            about: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
            child = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **about)
        try:
            _yield(child.pid, self.nice)
            place.note("run", child.pid)
            (place.folder / "entry").write_text(entry.keep)
            self._watch(entry, child.pid, lambda: child.poll() is None)
        finally:  # Ctrl-C, or an error of the queue
            if child.poll() is None:
                end_group(child.pid, lambda: child.poll() is None)
            place.keep(entry)
            place.note("run", None)
        self._judge(plan, child.returncode, log)

    def _bring_back(self, plan: Plan) -> None:
        """Write kept runs to the queue's folder for `--resume`: the folder may be new, as on another machine."""
        path = self.place.results(plan.entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            journal.heal(path)
        there = {record["key"] for record in _records(path)}
        with journal.Journal(path) as results:
            for run in plan.runs:
                if run["key"] in plan.found and run["key"] not in there:
                    results.append(dict(plan.found[run["key"]]))

    def _watch(self, entry: Entry, pid: int, alive: Callable[[], bool]) -> None:
        """Keep new runs until the process ends; stop it while the queue is paused."""
        path, seen = self.place.results(entry), -1
        while alive():
            self._while_paused(pid)
            size = path.stat().st_size if path.exists() else 0
            if size != seen:
                seen = size
                self.place.keep(entry)
            time.sleep(POLL)

    def _while_paused(self, pid: int | None) -> None:
        if not self.place.paused:
            return
        if pid is not None:
            signal_group(pid, signal.SIGSTOP)
        say("paused; `python tools/results_queue.py continue` lets it go on")
        while self.place.paused:
            time.sleep(POLL)
        if pid is not None:
            signal_group(pid, signal.SIGCONT)
        say("going on")

    def _judge(self, plan: Plan, code: int, log: Path) -> None:
        """Give up an entry that cannot continue, and a run that ends its process repeatedly."""
        now = _plan(self.place, plan.entry, {"runs": plan.runs, "error": ""})
        if not now.left:
            say(f"{plan.entry}: done, {_hours(now.spent)} of CPU time, {len(now.failed)} runs failed")
        elif code in (0, 1, 2):
            if len(now.left) == len(plan.left):
                self.given_up[plan.entry] = _last_line(log.read_text(errors="replace"))
        else:
            run = now.left[0]
            self.crashes[run["key"]] = crashes = self.crashes.get(run["key"], 0) + 1
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            say(f"{plan.entry}: {run['label']} ended its process ({how}), time {crashes} of {MOST_CRASHES}")
            if crashes >= MOST_CRASHES:
                error = f"ended its process {crashes} times, at last with {how}"
                ended = {"status": journal.FAILED, "error": error}
                ended |= {"finished": datetime.now(UTC).isoformat(timespec="seconds")}
                with journal.Journal(self.place.results(plan.entry)) as results:
                    results.append({**run, **ended})
                self.place.keep(plan.entry)

    def _adopt(self) -> None:
        """Wait for the run of a queue that was killed."""
        pid = self.place.noted("run")
        if pid is not None:
            keep = (self.place.folder / "entry").read_text()
            say(f"the run of a queue that was killed is still at work on {keep} (process {pid}): waiting for it")
            if not self.place.paused:
                signal_group(pid, signal.SIGCONT)
            try:
                self._watch(Entry("", keep, 0), pid, lambda: self.place.noted("run") is not None)
            finally:
                if self.place.noted("run") is not None:
                    end_group(pid, lambda: self.place.noted("run") is not None)
        self.place.note("run", None)


def _yield(pid: int, nice: int) -> None:
    """Give a session its priority: where Linux schedules by sessions, `nice` counts only within a session."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a run and its child processes; it may have ended since."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def end_group(pid: int, alive: Callable[[], bool]) -> None:
    """End a run as Ctrl-C does, or by force if that takes too long."""
    signal_group(pid, signal.SIGINT)
    signal_group(pid, signal.SIGCONT)
    until = time.monotonic() + GRACE
    while alive() and time.monotonic() < until:
        time.sleep(0.05)
    if alive():
        signal_group(pid, signal.SIGKILL)
        while alive():
            time.sleep(0.05)


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{datetime.now().astimezone():%H:%M:%S}  {text}", flush=True)


def _hours(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _ahead(found: Sequence[Plan]) -> str:
    left = sum(len(plan.left) for plan in found)
    return f"{left} run{'s' * (left != 1)} left, about {_hours(sum(plan.ahead for plan in found))} of CPU time"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the queue as Ctrl-C does, and Ctrl-C even where the shell had it ignored in the background."""

    def ended(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, ended) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(place: Place, nice: int) -> int:
    """Work through the queue; only one process does at a time."""
    read_queue(place.queue)
    with only_writer(place.folder, who="queue", remedy="`status` says what it does"), _ended_by_signals():
        place.note("queue", os.getpid())
        try:
            return Queue(place, nice).run()
        except KeyboardInterrupt:
            say("ended; what is finished is kept, `run` goes on")
            return 130
        finally:
            place.note("queue", None)


def status(place: Place) -> int:
    """Print finished and open runs of every entry; return the exit code, 2 if an entry cannot start."""
    found = plans(place)
    print(f"{'done':>5} {'failed':>6} {'left':>5} {'CPU spent':>10} {'CPU left':>10}  {'memory':<7} entry")
    for plan in found:
        done = len(plan.runs) - len(plan.left) - len(plan.failed)
        costs = f"{_hours(plan.spent):>10} {_hours(plan.ahead):>10}  {plan.entry.memory:<7}"
        print(f"{done:>5} {len(plan.failed):>6} {len(plan.left):>5} {costs} {plan.entry}")
        if plan.error:
            print(f"  cannot start: {plan.error}")
        for record in plan.failed:
            print(f"  failed: {record['label']}: {record.get('error')}")
    at_work = "paused" if place.paused else "at work" if place.noted("queue") else "not at work"
    print(f"{_ahead(found)}; the queue is {at_work}")
    return 2 if any(plan.error for plan in found) else 0


def stop(place: Place) -> int:
    """End the queue and its run, or the run that a killed queue has left."""
    if (queue := place.noted("queue")) is not None:
        os.kill(queue, signal.SIGTERM)
        while place.noted("queue") is not None:
            time.sleep(POLL)
    elif (pid := place.noted("run")) is not None:
        end_group(pid, lambda: place.noted("run") is not None)
    return 0


def set_paused(place: Place, *, paused: bool) -> int:
    """Pause or continue; the current run gets the signal at once, since its queue may have been killed."""
    place.folder.mkdir(parents=True, exist_ok=True)
    if paused:
        (place.folder / PAUSED).touch()
    else:
        (place.folder / PAUSED).unlink(missing_ok=True)
    if (pid := place.noted("run")) is not None:
        signal_group(pid, signal.SIGSTOP if paused else signal.SIGCONT)
    return 0


def retry(place: Place, name: str) -> int:
    """Forget the failed runs of a file, so that they are open again."""
    for path in (place.data / f"{name}.jsonl", place.folder / name / "results.jsonl"):
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            good = [line for line in lines if journal.went_well(json.loads(line))]
            replace_file(path, b"".join(good), mode=0o644)
            print(f"{path}: {len(lines) - len(good)} failed runs forgotten")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the command of the command line; return the exit code."""
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="results_queue.py", description=__doc__, formatter_class=about)
    parser.add_argument("command", choices=["run", "status", "pause", "continue", "stop", "retry", "list"])
    parser.add_argument("name", nargs="?", help="for retry")
    parser.add_argument("--queue", type=Path, default=ROOT / "tools" / "queue.toml", help="the list of experiments")
    parser.add_argument("--folder", type=Path, default=cache_dir() / "queue", help="where runs are written")
    parser.add_argument("--data", type=Path, default=kept_results.PAGES / "data", help="where records are kept")
    parser.add_argument("--nice", type=int, default=19, help="how far runs yield to all else, 0 to 19, the default")
    given = parser.parse_args(arguments)
    if not 0 <= given.nice <= 19:
        parser.error(f"--nice: expected a number from 0 to 19, got {given.nice}")
    if (given.command == "retry") != (given.name is not None):
        parser.error("retry, and no other command, takes the name of a file of records")
    place = Place(given.queue.resolve(), given.folder.resolve(), given.data.resolve())
    try:
        match given.command:
            case "run":
                return run(place, given.nice)
            case "status":
                return status(place)
            case "pause" | "continue":
                return set_paused(place, paused=given.command == "pause")
            case "stop":
                return stop(place)
            case "retry":
                with only_writer(place.folder, who="queue", remedy="`stop` ends it"):
                    return retry(place, given.name)
            case _:
                print(json.dumps([listed(words) for words in json.load(sys.stdin)], default=str))
                return 0
    except BrokenPipeError:  # `status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Broken, FolderInUse) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
