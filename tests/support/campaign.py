"""How much is tried: `make test` takes a tenth of what `make campaign` does."""

import os

from hypothesis import settings

FULL = os.environ.get("FEDGRAM_TESTS") == "campaign"


def size(number):
    """Return how often to try something that `make test` tries so many times."""
    return 10 * number if FULL else number


def examples(number):
    """Let a property test try so many examples, ten times as many in a campaign."""
    return settings(max_examples=size(number))
