"""What a file tells whoever has it, in two sentences for people who must decide whether it may be sent."""

from collections.abc import Callable
from typing import TypeAlias

from fedgram.exchange.files import File
from fedgram.exchange.rounds import Answer, Round
from fedgram.heads.system import System
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit

Sentences: TypeAlias = tuple[str, str]


def reveals(file: File) -> Sentences:
    """Return the two sentences."""
    for kind, sentences in _BY_PAYLOAD.items():
        if isinstance(file.payload, kind):
            return sentences(file)
    return _BY_KIND.get(
        file.header.kind,
        ("It states what its signer says has happened to files of the study.", "It holds no sums over samples."),
    )


def _moments(file: File) -> Sentences:
    return _of_moments(file.payload, "columns")


def _of_moments(moments: Moments, what: str) -> Sentences:
    first = (
        f"It holds counts, sums and sums of products of {moments.d:,} {what} over {moments.n:,} samples, by class, "
        "and no single row."
    )
    if moments.n <= moments.d:
        return first, (
            f"With no more samples than {what}, single rows can be computed from it: treat it like the table itself."
        )
    return first, (
        "As a rule rows cannot be solved for, but counts of small groups can be read off, and whoever knows all rows "
        "but one can compute that one."
    )


def _answer(file: File) -> Sentences:
    if isinstance(file.payload.reply, Moments):
        return _of_moments(file.payload.reply, "random features of the columns")
    return (
        f"It holds a gradient, the sum over {file.header.samples:,} samples of each sample's columns times how wrong "
        f"the coordinator's model is about it, for round {file.payload.number}.",
        "A model can be made up so that such a sum shows single samples: send it only to a coordinator that you trust "
        "with that.",
    )


def _round(file: File) -> Sentences:
    asked: Round = file.payload
    holds, made = ("the pooled means and spreads of the columns", "They are")
    if asked.payload is not None:
        holds, made = f"the model so far, and {holds}", "Both are"
    return (
        f"It asks all parties for the step {asked.step!r} of {asked.method}, round {asked.number}, and holds {holds}.",
        f"{made} made of sums over all parties.",
    )


def _fit(file: File) -> Sentences:
    fit: Fit = file.payload
    counts = "" if getattr(fit.message, "counts", None) is None else ", the number of samples of each class"
    first = (
        f"It holds the model that {fit.method} made of the sums of {len(fit.contributors):,} parties, their names"
        f"{counts}, and the pooled mean and spread of each column"
    )
    if isinstance(fit.message, System) or getattr(fit.message, "system", None) is not None:
        return (
            f"{first}, and all parties' sums and sums of products can be computed from it.",
            "Whoever also has such a file from before a party joined or left can compute that party's, and with few "
            "parties each learns much of the others'.",
        )
    return f"{first}.", "Together with a model from before a party joined or left, it tells about that party's sums."


_BY_PAYLOAD: dict[type, Callable[[File], Sentences]] = {
    Moments: _moments,
    Answer: _answer,
    Round: _round,
    Fit: _fit,
}
_BY_KIND = {
    "combined": (
        "It holds the sum of several parties' summaries (counts, sums and sums of products of columns, by class), and "
        "lists whose they are.",
        "Whoever has all of these summaries but one can compute that one.",
    ),
    "personal": (
        "It holds a model that was made of the party's own rows, besides what was published.",
        "It is meant for the party itself: whoever has it learns about the party's own samples.",
    ),
}
