"""Changes a store without end until it is killed; reports accepted changes on standard output.

Python takes longer to start than a store to change, so one process starts once and forks: for each line that it reads,
a number to begin with, a child works, and when that has been killed, the process reports it.
"""

import os
import sys
from pathlib import Path

from fedgram.core.errors import FedgramError
from fedgram.exchange.store import amending
from fedgram.exchange.store.study_store import Store
from support.stores import STUDY, summary

NAMES = ("north", "south", "east", "west")


def main(path):
    """Let a child work for each line."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            work(path, int(line))
        tell(f"child {child}")
        os.waitpid(child, 0)
        tell("dead")


def work(path, start):
    """Join, replace, remove, withdraw as a mistake and publish in turn, each step another one of a fixed sequence."""
    store = Store(path, study=STUDY)
    for number in range(start, start + 10_000):
        name = NAMES[number // 2 % len(NAMES)]
        try:
            done = step(store, number, name)
        except FedgramError as error:
            done = f"refused {error}"
        tell(f"{number} {done}")


def step(store, number, name):
    match number % 5:
        case 3 if number % 2:
            digest = store.contribution(name).digest
            return f"removed {name} {amending.withdraw(store, digest).contribution}"
        case 3:
            return f"removed {name} {store.remove(name).says['digest']}"
        case 4:
            return f"published {store.publish('afl').version}"
    data = summary(name, seed=number, n=6)
    [said] = store.join(data, replace=True)
    return f"{said.outcome} {name} {said.digest}"


def tell(text):
    os.write(1, f"{text}\n".encode())  # whole or not at all


if __name__ == "__main__":
    main(Path(sys.argv[1]))
