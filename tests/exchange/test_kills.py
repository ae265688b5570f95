"""A store whose process is killed at any instant has all accepted files, and nothing in part or twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedgram.exchange.store.ledger import members
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems
from support import campaign
from support.stores import summary

KILLS = campaign.size(20)
STEPS = 8  # that a process may make before it is killed; counted, so that a busy machine makes as many
LONGEST = 0.05  # seconds into the next one


@pytest.mark.campaign
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kills_lose_and_double_nothing(tmp_path):
    rng, number, changes = random.Random(0), 0, 0
    accepted = {}  # digests by party, as far as they were reported
    command = [sys.executable, "-m", "support.store_worker", str(tmp_path)]
    tests = Path(__file__).parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tests) as worker:
        for _ in range(KILLS):
            for what, *about in told_before_death(worker, number, rng.randrange(STEPS), rng.uniform(0, LONGEST)):
                if what in ("joined", "replaced"):
                    accepted[about[0]] = about[1]
                elif what == "removed":
                    accepted.pop(about[0])
                number += 1
                changes += what != "refused"
            number += 1  # the step that was killed may have been made
            check(tmp_path, accepted)
        worker.stdin.close()
    assert changes > KILLS


def told_before_death(worker, number, steps, seconds):
    """Let a child begin with this step, kill it after some steps and seconds, and return its reports of each."""
    worker.stdin.write(f"{number}\n")
    worker.stdin.flush()
    _, child = worker.stdout.readline().split()
    told = [worker.stdout.readline() for _ in range(steps)]
    time.sleep(seconds)
    os.kill(int(child), signal.SIGKILL)
    while (line := worker.stdout.readline()) != "dead\n":
        told.append(line)
    return [line.split()[1:] for line in told]


def check(path, accepted):
    """Compare a store with the reports; the killed step may be in, too, but only as a whole."""
    store = Store(path)
    if store.is_new:
        assert not accepted
        return
    assert problems(store) == []
    check_total(store)
    entries = store.log()
    present = {each.party: each.digest for each in store.contributions()}
    for party in {name for name, _ in set(present.items()) ^ set(accepted.items())}:
        assert entries[-1].says.get("party") == party, "more than the last step differs from what was told"
    assert members(entries, up_to=len(entries)) == set(present.values())
    versions = [entry.says["version"] for entry in entries if entry.says["what"] == "publish"]
    assert versions == list(range(1, len(versions) + 1))
    accepted.clear()
    accepted.update(present)


def test_a_process_killed_while_it_makes_a_store_leaves_none(tmp_path):
    for name in ("index.sqlite", "coordinator.key", ".coordinator.key.new"):
        (tmp_path / name).touch()
    store = Store(tmp_path)
    assert store.is_new
    assert store.join(summary("north"))[0].outcome == "joined"
