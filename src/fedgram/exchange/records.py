"""What a store remembers of its contributions and rounds, one row each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Contribution:
    """A file that is in the total: whose, of how many samples, of which class how many, signed with which key."""

    digest: str
    party: str
    kind: str
    samples: int
    counts: tuple[int, ...]
    size: int  # bytes
    signer: str
    created: str
    joined: str


@dataclass(frozen=True)
class Leaf:
    """A party's own summary, joined as such or in a combined file.

    `digest` is its file's; `content` knows its samples again under any other name.
    """

    digest: str
    party: str
    content: str
    samples: int
    created: str


@dataclass(frozen=True)
class Gone:
    """A summary that has left, with the contribution that it was or was part of, and the time after which a signature
    of it is fresh.
    """

    digest: str
    party: str
    contribution: str
    time: str


@dataclass(frozen=True)
class AskedRound:
    """A round that has been asked: the digest of its file, the run that it belongs to, and what all have answered."""

    number: int
    digest: str
    run: str
    said: bytes | None
