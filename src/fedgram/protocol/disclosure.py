"""Disclosure control of a party's answers: a sum over samples is not sent where it would show too few of them.

A step that replies with sums of samples times weights declares these weights (`@step(weighs=...)`). Before a party
answers a coordinator, it asks of how many samples the most telling combination of the sums is, and of their differences
to sums that it has sent before. What it has sent stands in a local record that never leaves the party.
"""

import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.blocks import as_blocks
from fedgram.core.errors import Doubtful, FedgramError, InvalidData, Revealing
from fedgram.core.files import locked, replacing, sweep_unfinished, writing
from fedgram.core.hashing import hash_bytes, hash_text
from fedgram.data.client import warn_if_few
from fedgram.protocol.clientside import ClientSide, perform

if TYPE_CHECKING:
    from fedgram.heads.likelihood import Labels
    from fedgram.protocol.method import Method

# An honest model of classes that are well apart is nearly right about all but a few samples, so of a cell's samples
# half are asked for; but never as few as a single one, unless the study protects no cells.
PART, LEAST = 2, 1.5
EPS = float(np.finfo(float).eps)
SAME = 1e-12  # combinations that cancel more than this leave rounding
RECORD = ".answers"  # how the name of a record ends
DIGEST_BYTES = 16  # of a sample's keyed digest


@dataclass(frozen=True)
class Weighing:
    """How samples count in the reply of a step.

    `weights` takes the method, the client's side and the payload, and returns blocks (n, k): the reply has k sums of
    the samples' columns times a weight each. Where it is `linear` the differences of two replies are such sums, too.
    """

    weights: Callable[[Any, ClientSide, Any], Iterator[Array]]
    linear: bool = False


def threshold(minimum_cell: int) -> float:
    """Return of how many samples of equal weight a sum must be under a study's `minimum_cell`; 0 for no limit.

    >>> threshold(3), threshold(10), threshold(1)
    (1.5, 5.0, 0.0)
    """
    return max(minimum_cell / PART, LEAST) if minimum_cell > 1 else 0.0


def effective_rows(weights: Array, labels: "Labels", earlier: Array | None = None) -> float:
    """Return of how many samples the most telling combination of some sums is; infinity where they tell nothing new.

    `weights` (n, k) are the samples' weights in k sums, `earlier` those in sums that were sent before, which can be
    subtracted. So can the sums of each class, which the summary has told. Of all combinations that remains the one in
    which a single sample counts most: its share is the leverage of the sample in the span of the weights. The number
    is that of samples of equal weight with the same spread: n where all count alike, 1 where one decides.

    >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    >>> constant = np.full((8, 1), 0.5)
    >>> effective_rows(constant, labels)
    inf
    >>> one = np.zeros((8, 1)); one[2] = 1e-9
    >>> round(effective_rows(constant + one, labels), 6)
    1.0
    """
    largest = np.abs(weights).max(axis=0, initial=0.0)
    if earlier is None:
        return _fewest_rows(_about_class_means(weights, labels), labels, largest)
    # What two answers tell apart from each other is in their difference, or in any other combination: where the models
    # mirror each other or swap classes, in their sum. What is left of the one beside the other covers these.
    largest = np.maximum(largest, np.abs(earlier).max(axis=0, initial=0.0))
    differences = _about_class_means(weights - earlier, labels)
    beside = _beside(_about_class_means(weights, labels), _about_class_means(earlier, labels))
    return min(
        _fewest_rows(differences, labels, largest), _fewest_rows(beside, labels, np.full(len(largest), largest.sum()))
    )


def _about_class_means(weights: Array, labels: "Labels") -> Array:
    """Return weights less their mean in each class: what sums tell beyond those of the summary."""
    counts = np.bincount(labels)
    means = np.zeros((len(counts), weights.shape[1]))
    np.add.at(means, labels, weights)
    found: Array = weights - (means / np.maximum(counts, 1)[:, None])[labels]
    return found


def _beside(weights: Array, earlier: Array) -> Array:
    """Return what is left of weights that earlier ones do not have in any combination."""
    lengths = np.linalg.norm(earlier, axis=0)
    directions, sizes, _ = np.linalg.svd(earlier[:, lengths > 0] / lengths[lengths > 0], full_matrices=False)
    directions = directions[:, sizes > SAME]
    for _ in range(2):  # the second time takes away what rounding has left
        weights = weights - directions @ (directions.T @ weights)
    return weights


def _fewest_rows(new: Array, labels: "Labels", largest: Array) -> float:
    """Return of how many samples the most telling combination is, where rounding is that of numbers up to `largest`."""
    counts = np.bincount(labels)
    lengths, rounding = np.linalg.norm(new, axis=0), 8 * EPS * largest * np.sqrt(len(new))
    kept = lengths > rounding
    if not kept.any():
        return np.inf
    directions, sizes, _ = np.linalg.svd(new[:, kept] / lengths[kept], full_matrices=False)
    directions = directions[:, sizes > max(SAME, float((rounding[kept] / lengths[kept]).sum()))]
    shares = np.square(directions).sum(axis=1) + 1 / counts[labels]
    most = int(shares.argmax())
    combined = directions @ directions[most] + (labels == labels[most]) / counts[labels[most]]
    return _effective(combined)


def _effective(weights: Array) -> float:
    squares = np.square(weights / np.abs(weights).max())
    return float(squares.sum() ** 2 / np.square(squares).sum())


class Columnwise(NamedTuple):
    """Of how many samples sums are: how many sums, the fewest of any, and of those over one class alone."""

    sums: int
    fewest: float
    in_a_class: float


def fewest_of_columns(blocks: Iterator[Array], labels: "Iterable[Labels]") -> Columnwise:
    """Return of how many samples the sums are, over all samples and over each class, with weights (n, k) in blocks."""
    sums, squares, fourths = 0, defaultdict[int, Any](float), defaultdict[int, Any](float)
    for block, own in zip(blocks, labels, strict=True):
        sums = block.shape[1]
        for place in np.unique(own).tolist():
            of_class = np.square(block[own == place])
            squares[place] += of_class.sum(axis=0)
            fourths[place] += np.square(of_class).sum(axis=0)
    alone = min((_fewest(squares[place], fourths[place]) for place in squares), default=np.inf)
    return Columnwise(sums, _fewest(sum(squares.values()), sum(fourths.values())), alone)


def _fewest(squares: Any, fourths: Any) -> float:
    some = np.asarray(fourths) > 0
    return float(np.min(np.square(squares)[some] / fourths[some], initial=np.inf)) if some.any() else np.inf


@dataclass(eq=False)
class Record:
    """The requests that a party has answered under a study, and which samples it answered with.

    `samples` has a set of samples under its digest: the keyed digests of its samples, sorted, (n, 16) bytes. `secret`
    is the key; without it a digest says nothing. (Rows that were summed for a summary belong there, too, once a
    replacement is compared with what it replaces.) `answers` are the requests, in order, each with its set of samples.
    """

    study: str
    party: str
    secret: npt.NDArray[np.uint8] = field(default_factory=lambda: np.frombuffer(token_bytes(32), dtype=np.uint8))
    samples: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)

    def digests(self, side: ClientSide) -> npt.NDArray[np.uint8]:
        """Return the keyed digests of a client's samples with their labels, sorted: which samples, in no order."""
        key, found = self.secret.tobytes(), []
        for x, y in zip(as_blocks(side.data.x), side.y_blocks, strict=True):
            rows = np.ascontiguousarray(np.column_stack([np.asarray(x, dtype="<f8"), np.asarray(y, dtype="<f8")]))
            found += [blake2b(row.tobytes(), digest_size=DIGEST_BYTES, key=key).digest() for row in rows]
        return np.frombuffer(b"".join(sorted(found)), dtype=np.uint8).reshape(-1, DIGEST_BYTES)

    def changed(self, found: npt.NDArray[np.uint8]) -> int:
        """Return how many samples have come or gone since an earlier answer, the larger of the two; 0 for none.

        It is the smallest such number of all earlier answers with other samples: tables may come near an older one.
        """
        new, changes = _counted(found), [0]
        for digests in self.samples.values():
            old = _counted(digests)
            changes.append(max((old - new).total(), (new - old).total()))
        return min(filter(None, changes), default=0)

    def add(self, entry: dict[str, Any], digests: npt.NDArray[np.uint8]) -> None:
        """Keep an answer."""
        which = hash_bytes([digests.tobytes()])
        self.samples.setdefault(which, digests)
        self.answers.append({**entry, "samples": which})


def _counted(digests: npt.NDArray[np.uint8]) -> Counter[bytes]:
    return Counter(row.tobytes() for row in digests)


def record_path(folder: Path, study: str, party: str) -> Path:
    """Return where the record of a party's answers under a study is; `study` is the fingerprint of its features."""
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in party)
    return folder / f"{name}-{hash_text(f'{study} {party}')[:16]}{RECORD}"


def warn_of_missing(text: str) -> None:
    """Warn that there was no record yet."""
    warnings.warn(text, Doubtful, stacklevel=2)


@contextmanager
def recording(path: Path, study: str, party: str, told: Callable[[str], None] = warn_of_missing) -> Iterator[Record]:
    """Yield the record at `path`, and write it when an answer was added: before the answer leaves this process.

    A missing record is begun, and `told` is called with a line that says so; one that cannot be read is refused.
    """
    remedy = "name another folder for the record of your answers"
    with locked(path.with_name(f"{path.name}.lock"), nullcontext, remedy=remedy):
        sweep_unfinished(path)
        record = _read(path, study, party, told)
        before = len(record.answers)
        yield record
        if len(record.answers) == before:
            return
        data = wire.encode({name: getattr(record, name) for name in FIELDS})
        with writing(path, remedy=remedy), replacing(path, mode=0o600) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


FIELDS = ("study", "party", "secret", "samples", "answers")
ENTRY = {"method": str, "settings": dict, "step": str, "request": str, "samples": str}


def _read(path: Path, study: str, party: str, told: Callable[[str], None]) -> Record:
    if not path.exists():
        told(
            f"no record yet of answers of {party!r} to this study: {path} begins with this one. If you have answered "
            "rounds of the study before, put their record there first, so that this answer is compared with them"
        )
        return Record(study, party)
    try:
        fields: Any = wire.decode(path.read_bytes(), sender="the record")
        record = Record(**fields)
        assert (record.study, record.party) == (study, party)
        assert len(record.secret) == 32 and record.secret.dtype == np.uint8  # noqa: PT018
        for entry in record.answers:
            assert all(isinstance(entry[name], kind) for name, kind in ENTRY.items())
            assert record.samples[entry["samples"]].shape[1:] == (DIGEST_BYTES,)
    except (OSError, FedgramError, AssertionError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InvalidData(
            f"{path}: expected the record of the answers of {party!r} to this study, got a file that cannot be read as "
            "one; restore it from a copy. To answer without comparing with earlier answers, move it away yourself"
        ) from error
    return record


def answered(
    method: "Method", side: ClientSide, request: dict[str, Any], minimum_cell: int, record: Record
) -> wire.Payload:
    """Return a client's reply to a request, unless it would show too few samples; an answer is added to the record.

    A request that was answered before, with the same samples, gets the same answer.
    """
    weighing: Weighing | None = getattr(getattr(type(method), request["step"], None), "fedgram_weighing", None)
    [reply] = perform(method, [side], [request])
    limit = threshold(minimum_cell)
    if weighing is None or not limit:
        return reply
    digests = record.digests(side)
    changed = record.changed(digests)
    if 0 < changed < minimum_cell:
        raise _refused(
            f"{changed} of the {side.n} samples of {side.name!r} are others than in its earlier answers, minimum_cell "
            f"is {minimum_cell}: the difference of the answers would show them",
            "answer with the table that the earlier rounds were answered with",
        )
    entry = {
        "method": method.name,
        "settings": method.settings(),
        "step": request["step"],
        "payload": request["payload"],
        "basis": side.basis,
    }
    entry["request"] = hash_bytes([wire.encode(entry)])
    which = hash_bytes([digests.tobytes()])
    if any((old["request"], old["samples"]) == (entry["request"], which) for old in record.answers):
        return reply
    weights = weighing.weights(method, side, request["payload"])
    if not weighing.linear:
        found = fewest_of_columns(weights, side.y_blocks)
        _check_enough(found.fewest, limit, side, minimum_cell, "")
        entry["sums"] = found.sums
        _warn_of_columns(found, limit, side, record)
    else:
        own, labels = np.concatenate(list(weights)), side.y
        _check_enough(effective_rows(own, labels), limit, side, minimum_cell, "")
        for place, old in enumerate(record.answers, start=1):
            if (old["method"], old["step"]) == (entry["method"], entry["step"]):
                before = _earlier_weights(weighing, method, side, old)
                what = f", less answer {place} of its record,"
                _check_enough(effective_rows(own, labels, before), limit, side, minimum_cell, what)
    record.add(entry, digests)
    return reply


def _warn_of_columns(found: Columnwise, limit: float, side: ClientSide, record: Record) -> None:
    """Warn a party of sums that show few samples where an honest coordinator's do so, too, so that none is refused."""
    if found.sums >= side.n:  # which is warned of before anything is computed
        return
    if found.in_a_class < limit:
        warnings.warn(
            f"party {side.name!r} answers with sums over each class of {found.sums} features, and the one of the "
            f"fewest samples is mostly of {found.in_a_class:.1f}: a coordinator that has chosen the features can "
            "compute such rows, with their labels; send it only to one that you trust with single rows",
            Revealing,
            stacklevel=2,
        )
    earlier = sum(entry.get("sums", 0) for entry in record.answers)
    if earlier:
        warn_if_few(side.name, earlier + found.sums, side.n)


def _earlier_weights(weighing: Weighing, method: "Method", side: ClientSide, old: dict[str, Any]) -> Array:
    """Return the weights that a client's samples have in an earlier answer."""
    then = ClientSide(side.data, classes=side.classes, basis=old["basis"])
    return np.concatenate(list(weighing.weights(type(method)(**old["settings"]), then, old["payload"])))


def _check_enough(found: float, limit: float, side: ClientSide, minimum_cell: int, what: str) -> None:
    if found < limit:
        raise _refused(
            f"the answer{what} would mostly be of {found:.1f} of the {side.n} samples of {side.name!r}, and under "
            f"minimum_cell = {minimum_cell} it must be of at least {limit:g}",
            "ask the coordinator for a larger ridge, for a method of one message such as fedgram, or for fewer, larger "
            "parties; if you cannot explain it, do not trust the coordinator",
        )


def _refused(figures: str, remedy: str) -> InvalidData:
    """Return a refusal with the party's own figures, of which the other side hears the rule only."""
    return InvalidData(f"{figures}; {remedy}").telling(
        "minimum_cell: an answer would show fewer samples than this client sends anything of"
    )
