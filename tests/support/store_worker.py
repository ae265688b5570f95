"""Changes a store without end until it is killed; says on standard output what has been accepted."""

import sys
from pathlib import Path

from fedgram.core.errors import FedgramError
from fedgram.exchange.store import Store
from support.stores import STUDY, summary

NAMES = ("north", "south", "east", "west")


def time_of(number):
    """Return a time that is later for a larger number, so that signatures are fresh."""
    return f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"


def main(path, start):
    """Join, replace, remove and publish in turn, each step another one of a fixed sequence."""
    store = Store(path, study=STUDY)
    for number in range(start, start + 10_000):
        name = NAMES[number // 2 % len(NAMES)]
        try:
            match number % 5:
                case 0 | 1 | 2:
                    data = summary(name, seed=number, n=6, created=time_of(number))
                    said = store.join(data, replace=True)[0]
                    done = f"{said.outcome} {name} {said.digest}"
                case 3:
                    done = f"removed {name} {store.remove(name).says['digest']}"
                case _:
                    done = f"published {store.publish('afl').version}"
        except FedgramError as error:
            done = f"refused {error}"
        sys.stdout.write(f"{number} {done}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
