"""Sizes of random tests: `make test` runs a tenth of `make campaign`, `make test-quick` a tenth of that.

`make test-lowest` tries the core alone.
"""

import os

from hypothesis import settings

WANTED = os.environ.get("FEDGRAM_TESTS", "")
FULL, QUICK, CORE_ONLY = (name == WANTED for name in ("campaign", "quick", "core"))
USUAL = 30  # examples of a property test


def size(number):
    """Return the number of tries in this mode, from that of `make test`."""
    return 10 * number if FULL else max(1, number // 10) if QUICK else number


def examples(number):
    """Set a property test's number of examples, ten times as many in a campaign."""
    return settings(max_examples=size(number))


def one_case_each(items):
    """Split tests into those to run and those to leave: of a test with many parameters the first case is run."""
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    kept = {id(item) for item in first.values()}
    return [item for item in items if id(item) in kept], [item for item in items if id(item) not in kept]
