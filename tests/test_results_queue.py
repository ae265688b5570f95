"""`tools/results_queue.py`: runs are kept as they end, also when the queue, a run or a record is damaged."""

import importlib
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from fedgram.experiments import journal
from support.runner import records
from support.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the queue reads /proc")

ROOT = Path(__file__).parent.parent
TOOL = ROOT / "tools" / "results_queue.py"
# A method with a given behaviour: works, waits for a file, fails, or ends its process.
TOLD = '''
import os, signal, time
from dataclasses import dataclass
import fedgram as fg

@dataclass(frozen=True, kw_only=True)
class Told(fg.Method):
    """Told — ridge regression that does as it is told first."""

    do: str = "work"
    number: int = 0

    def serve(self, clients):
        if self.do == "fail":
            raise ValueError("told to fail")
        if self.do == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        while self.do.startswith("/") and not os.path.exists(self.do):
            time.sleep(0.02)
        return fg.LinearModel(clients.mean(self.train), clients.classes)

    @fg.step
    def train(self, client):
        return client.moments().solve(1.0)
'''


class Queue:
    """A queue in a folder of its own, with entries on 100 digits."""

    def __init__(self, folder, tools):
        self._tools = tools
        self.folder, self.data, self.file = folder / "folder", folder / "data", folder / "queue.toml"
        self._home, self._entries, self._started = folder, [], []
        (folder / "told.py").write_text(TOLD)

    def add(self, keep, *methods, options=(), **more):
        """Add an entry with one line for each of the methods, given by their behaviour."""
        experiment = self._home / f"experiment-{len(self._entries)}.toml"
        lines = [
            f'{{ name = "{self._home / "told.py"}", label = "{i}", do = "{do}", number = {i} }}'
            for i, do in enumerate(methods)
        ]
        about = 'data = "digits"\nsamples = 100\nclients = 2\npartitions = "iid"\n'
        experiment.write_text(f"{about}methods = [{', '.join(lines)}]\n")
        values = {"file": str(experiment), "keep": keep, "hours": 0.1, "options": list(options), **more}
        self._entries.append("\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items()))
        self.file.write_text("".join(f"[[entries]]\n{entry}\n" for entry in self._entries))

    def _words(self, *words):
        places = ["--queue", self.file, "--folder", self.folder, "--data", self.data]
        if "--nice" not in words:  # at the lowest priority, a run beside other tests would take minutes
            places += ["--nice", "0"]
        return [*map(str, words), *map(str, places)]

    def start(self, *words, **environment):
        command = [sys.executable, TOOL, *self._words(*words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": os.environ | environment}
        self._started.append(subprocess.Popen(list(map(str, command)), **pipes))
        return self._started[-1]

    def end(self):
        """End a test's remaining processes."""
        self.tell("stop")
        for process in self._started:
            process.kill()
            process.communicate()

    def tell(self, *words, **environment):
        """Run a command to its end; return its exit code and output. Only `run` needs a process of its own."""
        if words[0] != "run":
            with redirect_stdout(StringIO()) as told, redirect_stderr(told):
                return self._tools.main(self._words(*words)), told.getvalue()
        process = self.start(*words, **environment)
        told, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, told

    def labels(self, keep):
        """Return label and status of the runs in the queue's folder, those of the reference aside."""
        path = self.folder / keep / "results.jsonl"
        return [(run["label"], run["status"]) for run in records(path) if not run["reference"]]

    def kept(self, keep):
        """Return label and status of the kept runs; a damaged line would be an error."""
        path = self.data / f"{keep}.jsonl"
        return [(run["label"], run["status"]) for run in records(path) if not run["reference"]] if path.exists() else []

    def run_at_work(self):
        return wait_for(lambda: (self.folder / "run.json").exists() and self._pid(), "a run at work")

    def _pid(self):
        try:
            return json.loads((self.folder / "run.json").read_text())["pid"]
        except (OSError, ValueError):
            return None


@pytest.fixture
def tools(monkeypatch):
    """Return the tool as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("results_queue")


@pytest.fixture
def queue(tmp_path, tools):
    made = Queue(tmp_path, tools)
    yield made
    made.end()


def state(pid):
    """Return the state of a process: T if it is stopped; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def gone(pid):
    return state(pid) in (None, "Z")


def test_entries_are_run_in_order_and_added_to_one_file(queue):
    queue.add("one", "work", "work")
    queue.add("one", "work", options=["--seeds", "1"])
    code, told = queue.tell("run")
    assert code == 0, told
    assert queue.kept("one") == [("0", "ok"), ("1", "ok"), ("0", "ok")]
    assert [run["seed"] for run in records(queue.data / "one.jsonl") if not run["reference"]] == [0, 0, 1]
    code, told = queue.tell("status")
    assert code == 0
    assert "0 runs left, about 0 s of CPU time; the queue is not at work" in told


def test_kept_runs_are_not_repeated_on_another_machine(queue, tmp_path):
    """There only the kept records are known."""
    queue.add("one", "work", "work")
    queue.tell("run")
    before = (queue.data / "one.jsonl").read_bytes()
    queue.folder = tmp_path / "elsewhere"
    assert queue.tell("run")[0] == 0
    assert not queue.folder.joinpath("one").exists()
    queue.add("one", "work", "work", "work")
    assert queue.tell("run")[0] == 0
    after = (queue.data / "one.jsonl").read_bytes()
    assert after.startswith(before)
    assert queue.kept("one") == [("0", "ok"), ("1", "ok"), ("2", "ok")]


def test_a_run_that_fails_is_kept_as_failed_and_not_repeated_until_told(queue):
    queue.add("bad", "fail", "work")
    queue.add("good", "work")
    assert queue.tell("run")[0] == 0
    assert queue.kept("bad") == [("0", "failed"), ("1", "ok")]
    assert queue.kept("good") == [("0", "ok")]
    queue.tell("run")
    assert queue.labels("bad") == [("0", "failed"), ("1", "ok")]
    assert "failed: 0: ValueError: told to fail" in queue.tell("status")[1]
    queue.tell("retry", "bad")
    assert queue.kept("bad") == [("1", "ok")]
    assert "1 run left" in queue.tell("status")[1]


def test_a_run_that_ends_its_process_is_given_up_and_the_rest_goes_on(queue):
    queue.add("bad", "work", "crash", "work")
    code, told = queue.tell("run")
    assert code == 0, told
    assert queue.labels("bad") == [("0", "ok"), ("1", "failed"), ("2", "ok")]
    (failed,) = (run for run in records(queue.data / "bad.jsonl") if run.get("status") == "failed")
    assert failed["error"] == "ended its process 2 times, at last with signal 9"


def test_an_entry_that_cannot_start_is_named_and_the_rest_goes_on(queue):
    queue.add("bad", "work", options=["--partition", "triangular"])
    queue.add("good", "work")
    code, told = queue.tell("status")
    assert code == 2
    assert "cannot start: " in told
    assert "triangular" in told
    code, told = queue.tell("run")
    assert code == 1
    assert "left out: " in told
    assert queue.kept("good") == [("0", "ok")]


def test_runs_without_data_are_not_failed_for_good(queue, tmp_path):
    """A failed download may work tomorrow."""
    queue.add("absent", "work", options=["--data", "mnist", "--backbone", "pixels"])
    queue.add("good", "work")
    code, told = queue.tell("run", FEDGRAM_OFFLINE="1", FEDGRAM_CACHE=str(tmp_path / "empty"))
    assert code == 1
    assert "left out: " in told
    assert queue.labels("absent") == [("0", "failed")]
    assert queue.kept("absent") == []
    assert queue.kept("good") == [("0", "ok")]
    assert "2 runs left" in queue.tell("status")[1]


def test_an_entry_that_needs_more_memory_than_there_is_lets_others_pass(queue):
    queue.add("large", "work", memory="900 TB")
    queue.add("small", "work")
    code, told = queue.tell("run")
    assert code == 1
    assert "needs 900 TB, more than this machine has" in told
    assert queue.kept("small") == [("0", "ok")]
    assert queue.kept("large") == []


def test_the_first_entry_with_enough_memory_is_next(tools):
    large, small = (tools.Plan(tools.Entry("a.toml", "a", 1, memory=memory)) for memory in ("18 GB", "500 MB"))
    assert tools.next_entry([large, small], 18e9) is large
    assert tools.next_entry([large, small], 17.9e9) is small
    assert tools.next_entry([large, small], 4e8) is None


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ('file = "a.toml"\nkeep = "a"', "expected hours, got nothing"),
        (
            'file = "a.toml"\nkeep = "a"\nhours = 1\nmemory = "much"',
            "memory: expected a number of MB or GB, got 'much'",
        ),
        ('file = "a.toml"\nkeep = "../a"\nhours = 1', "keep: expected the name of a file, got '../a'"),
        ('file = "a.toml"\nkeep = "a"\nhour = 1', "got 'hour'"),
        ('file = "a.toml"\nkeep = "a"\nhours = "1"', "hours: expected another kind of value, got '1'"),
        ("file = ", "expected a TOML file"),
    ],
)
def test_a_wrong_queue_file_is_told_in_one_line(queue, entry, wrong):
    queue.file.write_text(f"[[entries]]\n{entry}\n")
    code, told = queue.tell("run")
    assert code == 2
    assert len(told.splitlines()) == 1
    assert wrong in told


def test_pause_stops_the_run_at_once_and_continue_lets_it_go_on(queue, tmp_path):
    gate = tmp_path / "gate"
    queue.add("one", "work", str(gate))
    working = queue.start("run")
    pid = queue.run_at_work()
    wait_for(lambda: queue.kept("one") == [("0", "ok")], "the first run, kept while the second is at work")
    queue.tell("pause")
    wait_for(lambda: state(pid) == "T", "the run's stop")
    assert "the queue is paused" in queue.tell("status")[1]
    gate.touch()
    queue.tell("continue")
    assert working.wait(PATIENCE) == 0
    assert queue.kept("one") == [("0", "ok"), ("1", "ok")]


def test_pause_and_continue_reach_the_run_of_a_queue_that_was_killed(queue, tmp_path):
    gate = tmp_path / "gate"
    queue.add("one", str(gate), "work")
    working = queue.start("run")
    pid = queue.run_at_work()
    working.kill()
    working.wait()
    queue.tell("pause")
    wait_for(lambda: state(pid) == "T", "the run's stop")
    again = queue.start("run")
    wait_for(lambda: "at work" in again.stdout.readline(), "the next queue's waiting for the run")
    assert state(pid) == "T"
    gate.touch()
    queue.tell("continue")
    assert again.wait(PATIENCE) == 0
    assert gone(pid)
    assert queue.labels("one") == queue.kept("one") == [("0", "ok"), ("1", "ok")], "each was run once"


def test_after_both_are_killed_the_next_queue_goes_on(queue, tmp_path):
    gate = tmp_path / "gate"
    queue.add("one", "work", str(gate), "work")
    working = queue.start("run")
    pid = queue.run_at_work()
    results = queue.folder / "one" / "results.jsonl"
    wait_for(lambda: results.exists() and queue.labels("one"), "the first run")
    working.kill()
    os.killpg(pid, signal.SIGKILL)
    working.wait()
    wait_for(lambda: gone(pid), "the run's end")
    with results.open("ab") as stream:
        stream.write(b'{"kind":"run","meth')  # a line that the kill cut short
    (queue.data / "one.jsonl").unlink(missing_ok=True)  # as if killed before it was kept
    gate.touch()
    code, told = queue.tell("run")
    assert code == 0, told
    assert queue.labels("one") == queue.kept("one") == [("0", "ok"), ("1", "ok"), ("2", "ok")]


@pytest.mark.parametrize("how", ["SIGINT", "stop"])
def test_the_end_of_a_queue_ends_its_run_and_leaves_whole_files(queue, tmp_path, how):
    gate = tmp_path / "gate"
    queue.add("one", "work", str(gate))
    working = queue.start("run")
    pid = queue.run_at_work()
    wait_for(lambda: queue.kept("one"), "the first run")
    if how == "stop":
        queue.tell("pause")  # a stopped run must end, too
        queue.tell("stop")
    else:
        working.send_signal(signal.SIGINT)
    assert working.wait(PATIENCE) == 130
    assert gone(pid)
    for path in (queue.folder / "one" / "results.jsonl", queue.data / "one.jsonl"):
        assert all(isinstance(line, journal.Line) for line in journal.read(path))
    assert [path.name for path in queue.data.iterdir()] == ["one.jsonl"]
    queue.tell("continue")
    gate.touch()
    assert queue.tell("run")[0] == 0
    assert queue.labels("one") == [("0", "ok"), ("1", "ok")]


def test_of_two_queues_the_second_is_told(queue, tmp_path):
    gate = tmp_path / "gate"
    queue.add("one", str(gate))
    working = queue.start("run")
    queue.run_at_work()
    code, told = queue.tell("run")
    assert code == 2
    assert told.startswith("error: another queue is writing to")
    assert str(working.pid) in told
    gate.touch()
    assert working.wait(PATIENCE) == 0


def test_a_run_has_the_lowest_priority_and_as_many_threads_as_its_entry_says(queue, tmp_path):
    queue.add("one", str(tmp_path / "gate"), threads=2)
    queue.start("run", "--nice", "19")
    pid = queue.run_at_work()

    def environment():
        return dict(one.split("=", 1) for one in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in one)

    wait_for(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19, "the lowest priority")
    session = Path(f"/proc/{pid}/autogroup")
    if session.exists():  # there nice counts only among the processes of one session
        wait_for(lambda: session.read_text().split()[1:] == ["nice", "19"], "the priority of the session")
    assert environment()["OMP_NUM_THREADS"] == environment()["OPENBLAS_NUM_THREADS"] == "2"
