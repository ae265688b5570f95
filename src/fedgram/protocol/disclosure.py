"""Disclosure control of what a party sends: a sum over samples is not sent where it would show too few of them.

A step that replies with sums of samples times weights declares these weights (`@step(weighs=...)`). Before a party
answers a coordinator, it computes the effective number of samples in the most revealing combination of these sums, and
of their differences to sums that it has sent before. A local record of these never leaves the party.

A summary tells less of single samples, but the difference of two summaries is the sum over the samples that have come
or gone. So the record has the samples of each summary, too, and these differences follow the rule of small groups.
"""

import os
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import shake_256
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array, as_blocks
from fedgram.core.errors import Doubtful, FedgramError, InvalidData, Revealing, Withheld
from fedgram.core.filesystem import file_name, locked, replacing, sweep_unfinished, writing
from fedgram.core.hashing import hash_bytes, hash_text
from fedgram.data.client import warn_if_few
from fedgram.protocol.clientside import ClientSide, perform
from fedgram.protocol.registry import registry

if TYPE_CHECKING:
    from fedgram.heads.likelihood import Labels
    from fedgram.protocol.method import Method
    from fedgram.studies.small_groups import Keys
    from fedgram.studies.study import Study

# Where classes are well separated, an honest model has residuals for few samples only. So half the samples of a cell
# are enough; but always more than one, unless the study protects no cells.
PART, LEAST = 2, 1.5
EPS = float(np.finfo(float).eps)
SAME = 1e-12  # combinations that cancel more than this leave rounding
CANCELLED = 1e-4  # of the largest difference of two weights: such a small one hides no other sample
RECORD = ".answers"  # how the name of a record ends
DIGEST_BYTES = 16  # of a sample's keyed digest
HALF, ODD = np.uint64(32), np.uint64(1)
MOST_SUMMARIES = 100  # of a record, with different samples
MOST_ANSWERS = 10_000  # of a record: a new answer is compared with each, which takes time and room


@dataclass(frozen=True)
class Weighing:
    """The weights of samples in the reply of a step.

    `weights` takes the method, the client's side and the payload, and returns blocks (n, k): the reply has k sums of
    the samples' columns times a weight each. Where it is `linear` the differences of two replies are such sums, too.
    With `products` the last of the weights are those of an information XᵀWX, whose sums are of products of two columns
    each; it takes the payload and returns the places of these columns. `terms`, with the parameters of `weights`,
    returns the terms (n,) of a single number in the reply, whose sum tells of the samples that dominate it.
    """

    weights: Callable[[Any, ClientSide, Any], Iterator[Array]]
    linear: bool = False
    products: Callable[[Any], npt.NDArray[np.int64]] | None = None
    terms: Callable[[Any, ClientSide, Any], Iterator[Array] | None] = lambda *_: None


def threshold(minimum_cell: int) -> float:
    """Return the least number of samples of equal weight in a sum, under a study's `minimum_cell`; 0 for no limit.

    >>> threshold(3), threshold(10), threshold(1)
    (1.5, 5.0, 0.0)
    """
    return max(minimum_cell / PART, LEAST) if minimum_cell > 1 else 0.0


def effective_rows(weights: Array, labels: "Labels", earlier: Array | None = None) -> float:
    """Return the effective number of samples in the most revealing combination of sums; infinity for nothing new.

    `weights` (n, k) are the samples' weights in k sums, `earlier` those in sums that were sent before, which can be
    subtracted. So can the sums of each class, which are in the summary. The most revealing of the remaining
    combinations is the one in which a single sample counts most: its share is the sample's leverage in the span of the
    weights. The effective number is n where all samples count alike, and 1 where a single one decides.

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
    # Two answers may reveal samples by their difference or by another combination: by their sum, if the models mirror
    # each other or swap classes. The part of one answer that is orthogonal to the other covers all combinations.
    before = np.abs(earlier).max(axis=0, initial=0.0)
    beside = _beside(_about_class_means(weights, labels), _about_class_means(earlier, labels))
    rounding = np.full(len(largest), max(largest.sum(), before.sum()))
    found = _fewest_rows(beside, labels, rounding)
    if earlier.shape != weights.shape:  # another method's
        return found
    differences = _about_class_means(weights - earlier, labels)
    return min(found, _fewest_rows(differences, labels, np.maximum(largest, before)))


def _about_class_means(weights: Array, labels: "Labels") -> Array:
    """Return weights less their mean in each class: the part of sums that the summary does not have."""
    counts = np.bincount(labels)
    means = np.zeros((len(counts), weights.shape[1]))
    np.add.at(means, labels, weights)
    found: Array = weights - (means / np.maximum(counts, 1)[:, None])[labels]
    return found


def _beside(weights: Array, earlier: Array) -> Array:
    """Return the part of weights that is orthogonal to all earlier ones."""
    lengths = np.linalg.norm(earlier, axis=0)
    directions, sizes, _ = np.linalg.svd(earlier[:, lengths > 0] / lengths[lengths > 0], full_matrices=False)
    directions = directions[:, sizes > SAME]
    for _ in range(2):  # the second time takes away what rounding has left
        weights = weights - directions @ (directions.T @ weights)
    return weights


def _fewest_rows(new: Array, labels: "Labels", largest: Array) -> float:
    """Return the effective number of samples in the most revealing combination; `largest` bounds the rounding."""
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
    if not weights.any():
        return np.inf
    squares = np.square(weights / np.abs(weights).max())
    return float(squares.sum() ** 2 / np.square(squares).sum())


class Columnwise(NamedTuple):
    """The number of sums, and the least effective number of samples of any, and of any over a single class."""

    sums: int
    fewest: float
    in_a_class: float


def fewest_of_columns(blocks: Iterator[Array], labels: "Iterable[Labels]") -> Columnwise:
    """Return the effective number of samples in sums with weights (n, k) in blocks, over all and over each class."""
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
    is the key; without it a digest says nothing. `answers` are the requests, in order, each with its set of samples.
    `summaries` are the samples of each summary, (n, 16 + 8 w) bytes: keyed digests, each with the sample's indicators.
    """

    study: str
    party: str
    secret: npt.NDArray[np.uint8] = field(default_factory=lambda: np.frombuffer(token_bytes(32), dtype=np.uint8))
    samples: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    summaries: list[npt.NDArray[np.uint8]] = field(default_factory=list)

    def digests(self, side: ClientSide) -> npt.NDArray[np.uint8]:
        """Return the keyed digests of a client's samples with their labels, sorted: which samples, in no order."""
        blocks = zip(as_blocks(side.data.x), side.y_blocks, strict=True)
        return _in_order(np.concatenate([self.digests_of(x, y) for x, y in blocks]))

    def digests_of(self, x: Array, y: "Labels") -> npt.NDArray[np.uint8]:
        """Return the keyed digests of some samples with their labels, (n, 16).

        Both halves are sums of the sample's numbers, as words of 64 bits, times secret factors. A digest for each row
        by itself, as from `hashlib`, would take longer than to read and sum the table.
        """
        x = np.asfortranarray(x, dtype="<f8")
        factors = np.frombuffer(shake_256(self.secret.tobytes()).digest(16 * (x.shape[1] + 1)), dtype="<u8") | ODD
        found, product = np.zeros((2, len(x)), dtype=np.uint64), np.empty(len(x), dtype=np.uint64)
        for place, column in enumerate((*x.T, np.asarray(y, dtype="<f8"))):
            words = column.view("<u8")
            mixed = words >> HALF  # small whole numbers differ in the upper half alone
            mixed ^= words
            for half in (0, 1):
                found[half] += np.multiply(mixed, factors[2 * place + half], out=product)
        for _ in range(2):  # so that equal differences of rows are not equal differences of digests
            found ^= found >> HALF
            found *= factors[:2, None]
        return np.ascontiguousarray(found.T.astype("<u8")).view(np.uint8)

    def changed(self, found: npt.NDArray[np.uint8]) -> int:
        """Return the number of samples added or removed since an earlier answer, the larger of the two; 0 for none.

        It is the smallest such number over all earlier answers with other samples, not only the last.
        """
        changes = [0]
        for digests in (*self.samples.values(), *(rows[:, :DIGEST_BYTES] for rows in self.summaries)):
            _, more = _difference(digests, found)
            changes.append(max(int(more[more > 0].sum()), -int(more[more < 0].sum())))
        return min(filter(None, changes), default=0)

    def add(self, entry: dict[str, Any], digests: npt.NDArray[np.uint8]) -> None:
        """Keep an answer."""
        which = hash_bytes([digests.tobytes()])
        self.samples.setdefault(which, digests)
        self.answers.append({**entry, "samples": which})


def _in_order(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return rows of bytes, whose number is a multiple of eight, in an order that depends on them alone."""
    rows = np.ascontiguousarray(rows)
    return rows[np.lexsort(rows.view("<u8").T)]


def _difference(
    old: npt.NDArray[np.uint8], new: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the rows of bytes that are in one set more often than in the other, and how much more often in `new`."""
    rows = np.ascontiguousarray(np.concatenate([old, new]))
    if not len(rows):
        return rows, np.zeros(0, dtype=np.int64)
    order = np.lexsort(rows.view("<u8").T)
    rows, signs = rows[order], np.where(order < len(old), -1, 1)
    starts = np.flatnonzero(np.concatenate([[True], (rows[1:] != rows[:-1]).any(axis=1)]))
    more = np.add.reduceat(signs, starts)
    return rows[starts][more != 0], more[more != 0]


class SummedRows:
    """The samples of a summary that is being made, to be compared with those of earlier summaries and recorded.

    Parameters
    ----------
    study
        The study of the summary.
    record
        The party's record.
    path
        Where the record is, for the error.

    """

    def __init__(self, study: "Study", record: Record, path: Path) -> None:
        from fedgram.studies.small_groups import Patterns  # studies take a while to import

        self._study, self._record, self._path = study, record, path
        self._rows = [np.zeros((0, DIGEST_BYTES + Patterns(study).width), dtype=np.uint8)]

    def add(self, x: Array, labels: npt.NDArray[np.int64], keys: "Keys") -> None:
        """Add some samples, with the patterns of their indicators."""
        if not len(x):  # a block of which all rows were left out
            return
        indicators = np.ascontiguousarray(keys.T.astype("<u8")).view(np.uint8).reshape(len(x), -1)
        self._rows.append(np.concatenate([self._record.digests_of(x, labels), indicators], axis=1))

    def admit(self) -> None:
        """Enter the samples into the record; raise if the difference to an earlier summary would show too few."""
        from fedgram.studies.small_groups import Patterns, listed_groups

        rows, least, record = _in_order(np.concatenate(self._rows)), self._study.smallest_group, self._record
        if any(np.array_equal(rows, old) for old in record.summaries):
            return
        if len(record.summaries) >= MOST_SUMMARIES:
            raise Withheld(
                f"{self._path}: the record holds {len(record.summaries)} summaries of {record.party!r} with different "
                "samples, and no more can be compared with a new one; agree on a new study"
            ).telling("this client has sent as many summaries of the study as it can compare")
        for old in record.summaries:
            changed, more = _difference(old, rows)
            counts = np.abs(more)
            patterns = Patterns(self._study)
            keys = np.ascontiguousarray(changed[:, DIGEST_BYTES:]).view("<u8").T
            patterns.add(np.repeat(keys, counts, axis=1).astype(np.uint64))
            few = counts.sum() < least
            if few or (found := patterns.small(least)):
                size = f"{counts.sum()} sample{'s' * int(counts.sum() > 1)}"
                what = size if few else f"{size}, and among these {listed_groups(found)}"
                raise Withheld(
                    f"minimum_group: expected at least {least} samples that have come or gone since an earlier "
                    f"summary, and in each group of them, got {what}: the difference of the two files would show them; "
                    f"change more samples together, or, if the earlier file was not sent, move {self._path} away"
                ).telling("minimum_group: the difference to an earlier summary would show too few samples")
        record.summaries.append(rows)


def record_path(folder: Path, study: str, party: str) -> Path:
    """Return the path of the record of a party's answers under a study; `study` is the fingerprint of its features."""
    return folder / f"{file_name(party)}-{hash_text(f'{study} {party}')[:16]}{RECORD}"


def records_in(folder: Path, party: str) -> list[Path]:
    """Return the records of a party in a folder, of all studies."""
    wanted = re.compile(rf"{re.escape(file_name(party))}-[0-9a-f]{{16}}{re.escape(RECORD)}")
    return sorted(path for path in folder.iterdir() if wanted.fullmatch(path.name))


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
        before = len(record.answers), len(record.summaries)
        yield record
        if (len(record.answers), len(record.summaries)) == before:
            return
        data = wire.encode({name: getattr(record, name) for name in FIELDS})
        with writing(path, remedy=remedy), replacing(path, mode=0o600) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


FIELDS = ("study", "party", "secret", "samples", "answers", "summaries")
ENTRY = {"method": str, "settings": dict, "step": str, "request": str, "samples": str}


def _read(path: Path, study: str, party: str, told: Callable[[str], None]) -> Record:
    if not path.exists():
        told(
            f"no record yet of what {party!r} has sent for this study: {path} begins with this file. If you have sent "
            "files of the study before, put their record there first, so that this one is compared with them"
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
        assert all(rows.dtype == np.uint8 and rows.ndim == 2 for rows in record.summaries)
    except (OSError, FedgramError, AssertionError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InvalidData(
            f"{path}: expected the record of what {party!r} has sent for this study, got a file that cannot be read as "
            "one; restore it from a copy. To send without comparing with what was sent before, move it away yourself"
        ) from error
    return record


def answered(
    method: "Method", side: ClientSide, request: dict[str, Any], minimum_cell: int, record: Record
) -> wire.Payload:
    """Return a client's reply to a request, unless it would show too few samples; an answer is added to the record.

    A request that was answered before, with the same samples, gets the same answer.
    """
    weighing = weighing_of(type(method), request["step"])
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
    if len(record.answers) >= MOST_ANSWERS:
        raise InvalidData(
            f"the record of the answers of {side.name!r} holds {len(record.answers)}, and at most {MOST_ANSWERS} can "
            "be compared with a new one; if you cannot explain so many, do not trust the coordinator"
        ).telling("this client has answered as many rounds of the study as it can compare")
    weights = weighing.weights(method, side, request["payload"])
    if not weighing.linear:
        found = fewest_of_columns(weights, side.y_blocks)
        _check_enough(found.fewest, limit, side, minimum_cell, "")
        entry["sums"] = found.sums
        _warn_of_columns(found, limit, side, record)
    else:
        own, labels = np.concatenate(list(weights)), side.y
        _check_enough(effective_rows(own, labels), limit, side, minimum_cell, "")
        terms = weighing.terms(method, side, request["payload"])
        if terms is not None:
            fewest = _effective(np.concatenate(list(terms)))
            _check_enough(fewest, limit, side, minimum_cell, "'s sum beside the gradient")
        if weighing.products is not None:
            _check_information(own[:, -1], weighing.products(request["payload"]), limit, side, minimum_cell)
        for place, old in enumerate(record.answers, start=1):
            if old["method"] != method.name and old["method"] not in registry:
                continue
            then = type(method) if old["method"] == method.name else registry[old["method"]]
            told = weighing_of(then, old["step"])
            if told is None or not told.linear:
                continue
            before = _earlier_weights(told, then, side, old)
            what = f", less answer {place} of its record,"
            _check_enough(effective_rows(own, labels, before), limit, side, minimum_cell, what)
            if weighing.products is not None and told.products is not None:
                both = np.intersect1d(weighing.products(request["payload"]), told.products(old["payload"]))
                _check_information(own[:, -1], both, limit, side, minimum_cell, what, before[:, -1])
    record.add(entry, digests)
    return reply


OF_GROUP = "'s information about the samples with one value of a column"


def _check_information(
    weights: Array,
    places: npt.NDArray[np.int64],
    limit: float,
    side: ClientSide,
    minimum_cell: int,
    what: str = "",
    earlier: Array | None = None,
) -> None:
    """Raise for an information XᵀWX of too few samples: by itself, or less a multiple of XᵀX or of an earlier one.

    `places` are those of the columns that are multiplied. Sums of products of d columns are (d + 1)(d + 2)/2 equations,
    of which the m · d unknown numbers of m samples follow if m is small. The row of a flag or a level sums over its
    samples, and may not be of one of them.
    """
    everyone, enough = np.ones(side.n, dtype=bool), max(limit, min(side.shape[0] + 3, side.n / PART))
    (numbers, halves), largest = _columns(side), np.abs(weights).max()
    of_numbers = bool(numbers[places[places < len(numbers)]].any())  # flags alone cross few weights: many may be equal
    # A group of one, where the study allows it, is in the summary as it is.
    groups = ((group, limit, OF_GROUP) for half in halves for group in (half, ~half) if group.sum() > 1)
    for chosen, least, name in ((everyone, enough, "'s information"), *groups):
        own = weights[chosen]
        others = np.ones(len(own)) if earlier is None else earlier[chosen]
        if earlier is None:
            _check_enough(_effective(own), least, side, minimum_cell, name)
        if of_numbers and (left := _left(own, others, largest)):
            _check_enough(left, least, side, minimum_cell, f"{name}{what or ', less a part of XᵀX,'}")


def _columns(side: ClientSide) -> tuple[npt.NDArray[np.bool_], list[npt.NDArray[np.bool_]]]:
    """Return which columns have more than two values, and of each with two values which samples have the higher one."""
    blocks = side.x_blocks
    low = np.min([block.min(axis=0) for block in blocks if len(block)], axis=0)
    high = np.max([block.max(axis=0) for block in blocks if len(block)], axis=0)
    numbers = ~np.all([((block == low) | (block == high)).all(axis=0) for block in blocks], axis=0)
    two = np.flatnonzero(~numbers & (low < high))
    return numbers, list(np.concatenate([block[:, two] == high[two] for block in blocks]).T)


def _left(weights: Array, others: Array, rounded: float) -> float:
    """Return the number of samples that remain where a multiple of other weights, the median's, is subtracted.

    It is a count, not an effective number: late rounds of honest runs differ by a little, mostly at few samples, but at
    all of them. 0 is for the rounding of sums with weights of the size `rounded` alone.
    """
    some = others > 0
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = weights[some] / others[some]
        factor = np.median(ratio[np.isfinite(ratio)]) if np.isfinite(ratio).any() else 0.0
        sizes = np.abs(weights - factor * others)
    largest = sizes.max(initial=0.0)
    return float((sizes > CANCELLED * largest).sum()) if largest > SAME * rounded else 0.0


def _warn_of_columns(found: Columnwise, limit: float, side: ClientSide, record: Record) -> None:
    """Warn a party of sums that show few samples; they are not refused, because an honest coordinator's can, too."""
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


def weighing_of(method: "type[Method]", step: str) -> Weighing | None:
    """Return the weights that a step declares, None for none."""
    found: Weighing | None = getattr(getattr(method, step, None), "fedgram_weighing", None)
    return found


def _earlier_weights(weighing: Weighing, method: "type[Method]", side: ClientSide, old: dict[str, Any]) -> Array:
    """Return the weights that a client's samples have in an earlier answer."""
    then = ClientSide(side.data, classes=side.classes, basis=old["basis"])
    return np.concatenate(list(weighing.weights(method(**old["settings"]), then, old["payload"])))


def _check_enough(found: float, limit: float, side: ClientSide, minimum_cell: int, what: str) -> None:
    if found < limit:
        raise _refused(
            f"the answer{what} would mostly be of {found:.1f} of the {side.n} samples of {side.name!r}, and under "
            f"minimum_cell = {minimum_cell} it must be of at least {limit:g}",
            "ask the coordinator for a larger ridge, for fewer columns, for a method of one message such as fedgram, "
            "or for fewer, larger parties; if you cannot explain it, do not trust the coordinator",
        )


def _refused(figures: str, remedy: str) -> InvalidData:
    """Return a refusal with the party's own figures, of which the other side hears the rule only."""
    return InvalidData(f"{figures}; {remedy}").telling(
        "minimum_cell: an answer would show fewer samples than this client allows"
    )
