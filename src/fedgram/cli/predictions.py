"""What `fedgram predict` says of each sample, as lines for people and programs; a bad sample keeps its line."""

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import Mismatch
from fedgram.core.files import replacing, writing
from fedgram.core.labels import Classes, Label
from fedgram.core.progress import count_bar
from fedgram.core.terminal import echo
from fedgram.data.own.bad import OnBad
from fedgram.data.own.blocks import open_table
from fedgram.data.own.cells import Mask, guarded
from fedgram.models import Model, finite, probabilities
from fedgram.numeric_evaluation import Errors
from fedgram.studies.encoding import open_for
from fedgram.studies.model import ROWS, StudyModel

_SPECIAL = re.compile('[,"\r\n]')
PROBLEM = "problem"  # the last column, which says what is wrong with a row


@dataclass
class Tally:
    """How many samples there were, how many of them bad, and how many of those with a known label right.

    `errors` are those in numeric outcomes, by name, of the samples whose outcome is known.
    """

    samples: int = 0
    bad: int = 0
    known: int = 0
    right: int = 0
    errors: dict[str, Errors] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The share of right ones, None where no label is known."""
        return self.right / self.known if self.known else None

    def compare(self, name: str, predicted: Array, values: Array) -> None:
        """Add the errors of predicted numbers (n,) of an outcome; values (n,) are NaN where it is not known."""
        known = ~np.isnan(values)
        if known.any():
            errors = Errors.of(predicted[known], values[known])
            self.errors[name] = self.errors[name] + errors if name in self.errors else errors


@dataclass(frozen=True)
class Lines:
    """Some samples' labels or numbers, None for a bad one, and their lines as text."""

    labels: Sequence[Any]
    text: str


def plain(labels: Sequence[Label | None]) -> Lines:
    """Return a label a line, nothing where there is none."""
    return Lines(labels, "".join(f"{'' if label is None else guarded(str(label))}\n" for label in labels))


def header(key: str | None, outcomes: Sequence[str], classes: Classes) -> str:
    """Return the first line of a table of predictions."""
    names = [*([] if key is None else [key]), *outcomes, *(f"p({label})" for label in classes), PROBLEM]
    return _csv([list(map(guarded, names))])


def table(
    keys: Sequence[str] | None,
    labels: Sequence[Label | None] | None,
    numbers: Array,
    reasons: Sequence[str],
    head: str = "",
) -> Lines:
    """Return a line of CSV for each sample: its key, its label, numbers (n, …), and what is wrong with it.

    The numbers are a probability per class, or the outcomes themselves, which then have no labels. `head` goes first.
    """
    texts = [list(map(_cell, column)) for column in (keys, labels) if column is not None]
    found: Sequence[Any] = labels or [
        None if reason else value for value, reason in zip(numbers.tolist(), reasons, strict=True)
    ]
    if not any(reasons):
        # One format for all lines takes a third of the time that a line at a time does.
        form = ",".join(["%s"] * len(texts) + ["%.8g"] * numbers.shape[1] + ["\n"])
        cells = chain.from_iterable(zip(*texts, *numbers.T.tolist(), strict=True))
        return Lines(found, head + form * len(reasons) % tuple(cells))
    rows = (
        [*before, *("" if reason else f"{number:.8g}" for number in some), _cell(reason)]
        for *before, some, reason in zip(*texts, numbers.tolist(), reasons, strict=True)
    )
    return Lines(found, head + "".join(f"{','.join(row)}\n" for row in rows))


@lru_cache(maxsize=1 << 12)
def _cell(value: Label | None) -> str:
    """Return a cell as CSV has it; None is an empty one."""
    text = "" if value is None else guarded(str(value))
    return _csv([[text]]).removesuffix("\n") if _SPECIAL.search(text) else text


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def of_study(model: StudyModel, data: str, key: str | None, on_bad: OnBad | None, tally: Tally) -> Iterator[Lines]:
    """Yield the lines of a table of any size, block by block; bad rows are marked, unless they are to be refused."""
    study = model.study
    if on_bad == "refuse":  # before a line is printed, which takes a pass of its own
        for _ in open_for(study, Path(data), labelled=False, key=key).good_rows(on_bad):
            pass
    head = header(key, study.outcomes, model.classes if study.classes else ())
    for block in model.read(Path(data), key=key):
        bad = [place for place, reason in enumerate(block.reasons) if reason] if any(block.reasons) else []
        found = block.found.tolist()
        for place in bad:
            found[place] = None
        tally.samples += len(found)
        tally.bad += len(bad)
        if block.known is not None:
            judged = block.known.map(lambda label: label in model.classes, bool)
            judged[bad] = False
            tally.known += int(judged.sum())
            tally.right += int((judged & (block.found == block.known.map(str, np.str_))).sum())
        if block.values is not None:
            fine = np.array([not reason for reason in block.reasons], dtype=bool)
            for place, name in enumerate(study.targets):
                tally.compare(name, block.found[fine, place], block.values[fine, place])
        keys = None if block.keys is None else block.keys.tolist()
        if block.probabilities is None:
            yield table(keys, None, block.found, block.reasons, head)
        else:
            yield table(keys, found, block.probabilities, block.reasons, head)
        head = ""
    if head:  # there was not a single row
        yield Lines((), head)


@dataclass(frozen=True)
class Samples:
    """Some samples to be scored: which of them are good, these (n, …) with what label each is known to have, and keys.

    A key belongs to every sample, good or bad; None where nobody asked.
    """

    good: Mask
    x: Any
    known: Sequence[Label | None]
    keys: Sequence[str] | None


def of_samples(
    model: Model, samples: Iterable[Samples], key: str | None, tally: Tally, *, as_table: bool
) -> Iterator[Lines]:
    """Yield the lines of samples, block by block; bad ones keep their places."""
    head = header(key, ("label",), model.classes) if as_table else ""
    for some in _few_at_once(samples):
        scores = finite(model.scores(some.x))
        found = [model.classes[place] for place in scores.argmax(axis=1).tolist()]
        judged = [(one, other) for one, other in zip(found, some.known, strict=True) if other is not None]
        tally.samples, tally.bad = tally.samples + len(some.good), tally.bad + len(some.good) - len(found)
        tally.known, tally.right = tally.known + len(judged), tally.right + sum(one == other for one, other in judged)
        rest = iter(found)
        labels = [next(rest) if good else None for good in some.good.tolist()]
        if not as_table:
            yield plain(labels)
            continue
        whole = np.zeros((len(labels), len(model.classes)))
        whole[some.good] = probabilities(model, scores)
        yield table(some.keys, labels, whole, ["" if good else "bad" for good in some.good.tolist()], head)
        head = ""


def _few_at_once(samples: Iterable[Samples]) -> Iterator[Samples]:
    """Yield the samples a few at a time: what is said of a sample may take more memory than the sample."""
    for some in samples:
        end = 0
        for start in range(0, len(some.good), ROWS):
            good = some.good[start : start + ROWS]
            first, end = end, end + int(np.count_nonzero(good))
            keys = None if some.keys is None else some.keys[start : start + ROWS]
            yield Samples(good, some.x[first:end], some.known[first:end], keys)


def keys_of(data: str, key: str) -> Iterator[str]:
    """Return the cells of a table's key column."""
    source = open_table(data)
    if key not in source.names:
        raise Mismatch(f"{data} has no id column {key!r}: it has {', '.join(source.names[:8])}")
    return (cell for block in source.blocks([], [key]) for cell in block.texts[key].stripped().tolist())


def put(lines: Iterable[Lines], out: Path | None, *, collect: bool) -> list[Label | None]:
    """Write the lines to a file, whole or not at all, or print them, or `collect` and return the labels."""
    kept: list[Label | None] = []
    # Bars and lines on one terminal would get into each other's way.
    show = None if out is not None or collect or not sys.stdout.isatty() else False
    with ExitStack() as stack:
        file = None
        if out is not None:
            stack.enter_context(writing(out))
            file = stack.enter_context(replacing(out))
        advance = stack.enter_context(count_bar("predicting", None, show, transient=True))
        for some in lines:
            if file is not None:
                file.write(some.text.encode())
            elif collect:
                kept += some.labels
            else:
                echo(some.text, end="")
            advance(len(some.labels))
    return kept
