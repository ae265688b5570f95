"""The agreement of server and clients on the kind of data, before a method begins."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from fedgram.core.arrays import Array
from fedgram.core.classes import Classes, as_classes
from fedgram.core.columns import Columns, as_columns, difference
from fedgram.core.errors import Doubtful, FedgramError, InvalidData, Mismatch
from fedgram.core.wire import Payload
from fedgram.data.own.bad import warn_of_look_alikes
from fedgram.moments.basis import Basis, targets_under
from fedgram.moments.moments import described
from fedgram.moments.targets import ClassTargets, Targets
from fedgram.protocol.replies import Question

if TYPE_CHECKING:
    from fedgram.protocol.channel import Channel
    from fedgram.protocol.quorum import Quorum
    from fedgram.studies.study import Study

# Shape of a sample, fingerprint of the features, kind of the labels, sorted names of the columns.
_Kind: TypeAlias = tuple[tuple[int, ...], str, str, Columns]
NAMES, NUMBERS = "names as", "numbers as"  # what labels are
AGREEING = "agreeing on the data"
DECIDES = 1000  # times the samples of all others: a client with more is warned of


@dataclass(frozen=True)
class Agreement:
    """The kind of data that all clients of a run have, and how much of it each has.

    Before the clients have said hello, only the classes are known, and these only if the caller gave them.
    """

    classes: Classes = ()
    shape: tuple[int, ...] = ()  # of a sample
    features: str = ""  # their fingerprint
    columns: Columns = ()  # their names, in the agreed order
    samples: Mapping[str, int] = field(default_factory=dict)  # for training, by client
    tested: Mapping[str, int] = field(default_factory=dict)  # for testing, by client
    far: bool = False  # whether columns of some client are far from zero
    study: "Study | None" = None  # the study that makes columns of those that clients have, if any
    basis: Basis | None = None  # the study's map, once pooled sums are known; without a study, columns less a centre
    declared: Targets | None = None  # given by the caller, where they are neither classes nor a study's numbers
    squares: Array | None = field(default=None, compare=False)  # sums over all clients, by column, where they are known

    def __post_init__(self) -> None:
        """Take read-only copies of the counts."""
        for name in ("samples", "tested"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def outcomes(self) -> Columns:
        """The numeric outcomes, last among the columns; () where there are classes."""
        return () if self.study is None else self.study.targets.names

    @property
    def targets(self) -> Targets:
        """The targets of models; numeric outcomes lose their pooled means once the basis is known."""
        given = self.declared if self.study is None else self.study.targets
        return targets_under(self.basis, given or ClassTargets(self.classes))

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape of a sample as methods see it."""
        return self.shape if self.basis is None else (self.basis.of_features.shift.size,)

    @property
    def centre(self) -> Array | None:
        """The number that is subtracted from each column before sums are made, None for nothing."""
        return None if self.basis is None else self.basis.centre

    def question(self, client: str, payload: Payload, round: int) -> Question:
        """Return the question to a client with this payload, which its reply is checked against."""
        return Question(
            client,
            payload,
            round,
            self.classes,
            self.seen,
            self.features,
            self.samples.get(client, 0),
            self.tested.get(client, 0),
            self.columns if self.basis is None else self.basis.of_features.columns,
            () if self.basis is None else self.outcomes,  # before, they are columns like the others
            self.targets,
            () if self.centre is None else tuple(self.centre.tolist()),
            self.squares,
        )


def agree(channel: "Channel", quorum: "Quorum", classes: Classes, study: "Study | None" = None) -> Agreement:
    """Return the agreement of the clients that have the same kind of data; the others leave the run.

    Under a study its kind of data and its order of columns count, however many clients have others. Without a study the
    kind that most clients have counts; the others are refused by name. Class folders {cat, dog} and {dog, fox} are
    never added as 0, 1: labels are matched by name. So are columns, in the order that most clients have. Without
    `classes` they are the labels that occur.
    """
    hellos = _hellos(channel, quorum, classes)
    kinds = {name: _kind(hello) for name, hello in hellos.items() if hello["n"]}
    if not kinds:
        raise InvalidData(f"none of the {len(hellos)} clients has any samples")
    agreed = None if study is None else _kind_of(study)
    if agreed is not None and any(_same_data(kind, agreed) for kind in kinds.values()):
        # Labels are matched by name, so how a client writes them does not count.
        kinds = {name: agreed if _same_data(kind, agreed) else kind for name, kind in kinds.items()}
        usual, whose = agreed, "the study"
    else:
        usual, whose = _most_frequent(kinds), "most clients"
    strangers = {name: Mismatch(_unlike(kind, usual, whose)) for name, kind in kinds.items() if kind != usual}
    if strangers:
        quorum.lose(strangers, during=AGREEING)
    alike = [hellos[name] for name, kind in kinds.items() if kind == usual]
    if not classes:
        classes = as_classes(sorted({label for hello in alike for label in hello["labels"]}))
        # "Well" here and "well" there would be two classes, each of which half of the clients have never seen.
        warn_of_look_alikes(classes, "the clients' labels")
    for name, hello in hellos.items():
        if not hello["n"]:
            quorum.leave_out(name)
    quorum.lose({}, during=AGREEING)
    _warn_of_the_largest({name: hellos[name]["n"] for name, kind in kinds.items() if kind == usual})
    shape, features, *_ = usual
    return Agreement(
        classes,
        shape,
        features,
        _usual_order(tuple(hello["columns"]) for hello in alike) if study is None else study.schema.columns,
        far=any(hello["far"] for hello in alike),
        samples={name: hello["n"] for name, hello in hellos.items()},
        tested={name: hello["tested"] for name, hello in hellos.items()},
    )


def _hellos(channel: "Channel", quorum: "Quorum", classes: Classes) -> dict[str, dict[str, Any]]:
    """Return the hellos of clients by name, without those that contradict themselves."""
    failed: dict[str, FedgramError] = {}
    asked = [(name, None) for name in quorum.names]
    hellos = dict(channel.ask("hello", asked, Agreement(classes), failed))
    if failed:
        quorum.lose(failed, during="step 'hello'")
    odd = {name: error for name, hello in hellos.items() if (error := _contradiction(hello)) is not None}
    if odd:
        quorum.lose(odd, during=AGREEING)
    return {name: hello for name, hello in hellos.items() if name not in odd}


def _contradiction(hello: dict[str, Any]) -> FedgramError | None:
    """Return the error of a hello that contradicts itself, which would spoil the run for all; None for a sound one."""
    n, shape, labels, tested = (hello[key] for key in ("n", "shape", "labels", "tested"))
    try:
        as_columns(hello["columns"], *shape[:1])
    except FedgramError as error:
        return error
    if n and not shape:
        return Mismatch(f"has {n} samples without any shape")
    if n and labels is not None:
        wanted = str if hello["kind"] == NAMES else int
        if strangers := [label for label in labels if type(label) is not wanted]:
            return Mismatch(f"says that it has {hello['kind']} labels, and lists {repr(strangers[0])[:60]}")
        if not 0 < len(labels) <= n + tested:
            return Mismatch(f"lists {len(labels)} labels of {n + tested} samples")
    return None


def _warn_of_the_largest(samples: Mapping[str, int]) -> None:
    """Warn of a client that claims nearly all samples, which the server cannot count."""
    name = max(samples, key=samples.__getitem__)
    rest = sum(samples.values()) - samples[name]
    if len(samples) > 2 and samples[name] > DECIDES * rest:
        warnings.warn(
            f"client {name!r} says that it has {samples[name]} samples, and the other {len(samples) - 1} have {rest}: "
            "where clients weigh by their samples it decides alone; leave it out if that cannot be",
            Doubtful,
            stacklevel=2,
        )


def _usual_order(orders: Iterable[Columns]) -> Columns:
    """Return the order of columns that most clients have; of several such, the first in the alphabet."""
    votes = Counter(orders)
    return min(votes, key=lambda columns: (-votes[columns], columns))


def _kind(hello: dict[str, Any]) -> _Kind:
    return tuple(hello["shape"]), hello["features"], hello["kind"], tuple(sorted(hello["columns"]))


def _most_frequent(kinds: Mapping[str, _Kind]) -> _Kind:
    """Return the kind of data that most clients have."""
    (usual, most), *rest = Counter(kinds.values()).most_common(2)
    if rest and rest[0][1] == most:
        what = "; ".join(f"client {name!r} has {_describe(kind)}" for name, kind in kinds.items())
        raise Mismatch(f"{AGREEING}: clients differ, and no kind of data is the most frequent: {what}")
    return usual


def _kind_of(study: "Study") -> _Kind:
    """Return the kind of data that clients of a study have."""
    columns = study.schema.columns
    return (len(columns),), study.features, "", tuple(sorted(columns))


def _same_data(kind: _Kind, agreed: _Kind) -> bool:
    """Return whether shape, features and columns are those of the study."""
    return (*kind[:2], kind[3]) == (*agreed[:2], agreed[3])


def _unlike(kind: _Kind, usual: _Kind, whose: str) -> str:
    """Return the difference of a client's data from those that most clients or the study have."""
    have = "has" if whose == "the study" else "have"
    if unlike := difference(kind[-1], usual[-1]):
        return f"{unlike} (as to what {whose} {have})"
    return f"has {_describe(kind)}; {whose} {have} {_describe(usual)}"


def _describe(kind: _Kind) -> str:
    shape, features, labels, _ = kind
    parts = [
        f"samples of shape {shape}",
        described(features) if features else "",
        f"{labels} labels" if labels else "",
    ]
    return ", ".join(part for part in parts if part)
