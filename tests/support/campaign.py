"""How much is tried: `make test` takes a tenth of what `make campaign` does, `make test-lowest` the core alone."""

import os

from hypothesis import settings

WANTED = os.environ.get("FEDGRAM_TESTS", "")
FULL, CORE_ONLY = WANTED == "campaign", WANTED == "core"


def size(number):
    """Return how often to try something that `make test` tries so many times."""
    return 10 * number if FULL else number


def examples(number):
    """Let a property test try so many examples, ten times as many in a campaign."""
    return settings(max_examples=size(number))
