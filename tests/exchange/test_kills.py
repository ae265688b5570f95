"""A store whose process is killed at any instant opens with all that was accepted, and nothing in part or twice."""

import random
import subprocess
import sys
import time

import pytest

from fedgram.exchange.ledger import members
from fedgram.exchange.store import Store
from fedgram.exchange.verification import check_total, problems
from support import campaign
from support.stores import summary
from support.waiting import PATIENCE

KILLS = campaign.size(20)
LONGEST = 0.4  # seconds that a process works before it is killed


@pytest.mark.campaign
def test_kills_lose_and_double_nothing(tmp_path):
    rng, number = random.Random(0), 0
    accepted = {}  # digests by party, as far as somebody was told
    for _ in range(KILLS):
        command = [sys.executable, "-m", "support.store_worker", str(tmp_path), str(number)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        first = process.stdout.readline()  # it has begun
        time.sleep(rng.uniform(0, LONGEST))
        process.kill()
        rest, _ = process.communicate(timeout=PATIENCE)
        said = [line for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
        for line in said:
            number, what, *about = line.split()
            note(accepted, what, about)
        number = int(number) + 2 if said else number
        check(tmp_path, accepted)


def note(accepted, what, about):
    if what in ("joined", "replaced", "already"):
        *_, digest = about
        accepted[about[-2]] = digest
    elif what == "removed":
        accepted.pop(about[0])


def check(path, accepted):
    """Compare a store with what was told; the step that was killed may be in, too, but only as a whole."""
    store = Store(path)
    assert problems(store) == []
    check_total(store)
    entries = store.log()
    present = {each.party: each.digest for each in store.contributions()}
    untold = [entry.says for entry in entries[-1:]]
    for party in set(present) ^ set(accepted) | {name for name in present if accepted.get(name) != present[name]}:
        assert untold[0].get("party") == party, "more than the last step differs from what was told"
    assert members(entries, up_to=len(entries)) == set(present.values())
    versions = [entry.says["version"] for entry in entries if entry.says["what"] == "publish"]
    assert versions == list(range(1, len(versions) + 1))
    accepted.clear()
    accepted.update(present)


def test_a_process_killed_while_it_makes_a_store_leaves_none(tmp_path):
    (tmp_path / "index.sqlite").touch()
    store = Store(tmp_path)
    assert store.is_new
    assert store.join(summary("north"))[0].outcome == "joined"
