"""The server's side of a run: asking clients for steps, and adding up what they reply."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from fedgram.core.columns import Columns
from fedgram.core.errors import FedgramError, InvalidParameter, Mismatch, Revealing
from fedgram.core.randomness import generator
from fedgram.core.wire import Payload
from fedgram.evaluation import Evaluation
from fedgram.models import Model
from fedgram.moments import far_columns
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments, Total
from fedgram.moments.targets import Targets
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.channel import Channel
from fedgram.protocol.pool import Pool, Recorder
from fedgram.protocol.quorum import Quorum, draw_share
from fedgram.protocol.sites import SiteKeeper, Sites
from fedgram.protocol.transport import Reply

if TYPE_CHECKING:
    from fedgram.protocol.method import Method
    from fedgram.protocol.session import Checkpoint

Step: TypeAlias = Callable[..., Any]
T = TypeVar("T")


# Replies of one form (moments of one kind, arrays of one shape) have a running total of their own. The form that most
# clients have is the result, so that a single reply, even the first, cannot decide; the others are refused.
LONGEST_FORM = 200  # characters in an error


@dataclass
class Tally:
    """The replies of one form: their senders, the first of them, and their total."""

    form: Hashable
    first: Payload
    clients: list[str] = field(default_factory=list)
    weights: float = 0.0
    _total: Any = None

    def add(self, client: str, value: Payload, weight: float | None) -> None:
        """Add a reply, times its weight if there is one."""
        self.clients.append(client)
        if isinstance(value, Moments):
            self._total = self._total or Total()
            self._total.add(value)
            return
        if weight is not None:
            value = combine(lambda leaf: np.multiply(leaf, weight, dtype=np.float64), value)
            self.weights += weight
        self._total = value if self._total is None else combine(lambda one, other: one + other, self._total, value)

    @property
    def total(self) -> Payload:
        """The sum of the replies."""
        return self._total.moments() if isinstance(self._total, Total) else self._total

    @property
    def mean(self) -> Payload:
        """The weighted mean, in the replies' own precision."""
        return combine(lambda leaf, like: (leaf / self.weights).astype(_floating(like)), self._total, self.first)


def tally(
    replies: Iterable[tuple[str, Payload]], weight: Callable[[str], float] | None = None
) -> tuple[Tally | None, dict[str, FedgramError]]:
    """Return the total of the replies in the most frequent form, and the errors of clients with other forms."""
    tallies: dict[Hashable, Tally] = {}
    strangers: dict[str, FedgramError] = {}
    for client, value in replies:
        try:
            form = form_of(value)
        except Mismatch as error:
            strangers[client] = error
            continue
        tallies.setdefault(form, Tally(form, value)).add(client, value, None if weight is None else weight(client))
    most = max((len(found.clients) for found in tallies.values()), default=0)
    usual = [found for found in tallies.values() if len(found.clients) == most]
    [chosen] = usual if len(usual) == 1 else [None]
    others = f"most with {_shown(chosen.form)}" if chosen else "and no form is the most frequent"
    for found in tallies.values():
        if found is not chosen:
            strangers |= {client: Mismatch(f"replied with {_shown(found.form)}, {others}") for client in found.clients}
    return chosen, strangers


def telling(replies: Iterable[Reply], heard: Callable[[str, Any], None]) -> Iterator[Reply]:
    """Yield the replies, after calling `heard` with each as it comes."""
    for reply in replies:
        heard(*reply)
        yield reply


def checked_weights(weights: Mapping[str, float], asked: Iterable[str], *, weighted: bool) -> Mapping[str, float]:
    """Return the weights of a mean; raise unless every client that is asked has a valid weight."""
    if not weighted:
        raise InvalidParameter("give `weights` or `weighted=False`, not both")
    for name in asked:
        if name not in weights:
            raise InvalidParameter(f"weights has none for client {name!r}: give one for every client that is asked")
        if not (isfinite(weights[name]) and weights[name] >= 0):
            raise InvalidParameter(f"the weight of client {name!r} must be a number ≥ 0, got {weights[name]}")
    return weights


def form_of(value: Payload) -> Hashable:
    """Return the form that two replies must share to be added.

    >>> form_of({"w": np.ones((2, 3)), "b": [1.5]})
    (('b', ('number',)), ('w', 'shape (2, 3)'))
    """
    if isinstance(value, Moments):
        return value.schema
    if isinstance(value, dict):
        return tuple((key, form_of(value[key])) for key in sorted(value))
    if isinstance(value, list):
        return tuple(map(form_of, value))
    if isinstance(value, np.ndarray) and value.shape:
        return f"shape {value.shape}"
    if isinstance(value, int | float | np.ndarray | np.generic):
        return "number"
    raise Mismatch(f"replied with a {type(value).__name__}, which cannot be added up")


def combine(operation: Callable[..., Any], *trees: Any) -> Any:
    """Return the result of an operation on the leaves of equally shaped lists and dicts."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: combine(operation, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list):
        return [combine(operation, *leaves) for leaves in zip(*trees, strict=True)]
    return operation(*trees)


def _shown(form: Hashable) -> str:
    """Return a form as text of limited length, since a reply may have a million fields."""
    text = str(form)
    return text if len(text) <= LONGEST_FORM else f"{text[:LONGEST_FORM]} …"


def _floating(leaf: Any) -> Any:
    dtype = np.asarray(leaf).dtype
    return dtype if dtype.kind == "f" else np.float64


class Clients:
    """The clients as a method's `serve` sees them.

    They have agreed on `classes`, the `shape` of a sample, the `features`' fingerprint and the names of the `columns`;
    `samples` and `tested` say how many samples for training and for testing each has, by name.
    """

    def __init__(
        self, method: "Method", agreement: Agreement, channel: Channel, quorum: Quorum, *, seed: int = 0
    ) -> None:
        self.agreement = agreement
        self.classes, self.features = agreement.classes, agreement.features
        self.samples, self.tested = agreement.samples, agreement.tested
        self.round = 0
        self.rounds: list[Evaluation] = []  # the evaluations reported
        self.pooled: Pool | None = None  # pooled moments, if the model is made of them alone
        self.message: Payload = None  # the published message, if it does not follow from moments alone
        self.notes: dict[str, Payload] = {}
        self.sites: Sites | None = None  # each client's moments, if the run sums moments
        self.checkpoint: Checkpoint | None = None  # from which a long run can be resumed
        self.reporting = {"wall": 0.0, "cpu": 0.0, "clients": 0.0}  # seconds
        self._method, self._channel, self._quorum, self._seed = method, channel, quorum, seed
        self._rng: tuple[int, np.random.Generator] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample as methods see it."""
        return self.agreement.seen

    @property
    def columns(self) -> Columns:
        """The names of the columns that clients have, in the agreed order."""
        return self.agreement.columns

    @property
    def targets(self) -> Targets:
        """The targets of models: classes, numeric outcomes or another kind."""
        return self.agreement.targets

    @property
    def names(self) -> list[str]:
        """Clients that can be asked: they have samples and have not failed."""
        return self._quorum.names

    @property
    def present(self) -> list[str]:
        """Clients that have not failed, those without samples included."""
        return self._quorum.present

    @property
    def contributors(self) -> list[str]:
        """Clients whose replies have entered the result, in the engine's order."""
        return self._quorum.contributors

    @property
    def elapsed(self) -> Mapping[str, float]:
        """Seconds from request to reply, by client, in the last step other than an evaluation."""
        return self._channel.timing.last

    @property
    def rng(self) -> np.random.Generator:
        """The server's random numbers of this round."""
        if self._rng is None or self._rng[0] != self.round:
            self._rng = self.round, generator(self._seed, self._method.purpose, "server", self.round)
        return self._rng[1]

    def call(
        self,
        step: Step,
        payload: Payload = None,
        *,
        to: Iterable[str] | None = None,
        per_client: Mapping[str, Payload] | None = None,
    ) -> Iterator[Reply]:
        """Yield the replies of clients to a step, as they come.

        All clients get `payload`, or each its own from `per_client`. `to` names the clients to ask, by default all that
        can be asked. A failure is never silent: after the last reply, the run ends with an error that names the clients
        that failed, unless `require` lets it go on without them. Without a single reply it ends, too.
        """
        tasks, replied = dict(self._quorum.tasks(payload, to, per_client)), False
        for reply in self.ask(step, per_client=tasks):
            replied = True
            self._count(reply.client)
            yield reply
        if tasks and not replied:
            raise self._quorum.unanswered(during=f"step {step.__name__!r}")

    def _count(self, client: str) -> None:
        """Count a client's reply as one that has entered the result."""
        self._quorum.heard.add(client)
        self._channel.timing.took_part(client, self.round)

    def each(self, step: Step, payload: Payload = None, **options: Any) -> None:
        """Ask clients for a step whose replies do not matter."""
        for _ in self.ask(step, payload, **options):
            pass

    def sum(self, step: Callable[..., T], payload: Payload = None, *, validate: bool = False, **options: Any) -> T:
        """Return the sum of the replies: moments, or arrays, or lists or dicts of them; `validate` fills `sites`."""
        add_up = self._tally_sites if validate else self._tally
        total = add_up(step, self.ask(step, payload, **options)).total
        return cast("T", self._seen(total) if isinstance(total, Moments) else total)

    def _tally_sites(self, step: Step, replies: Iterable[Reply]) -> Tally:
        """Return the tally of moments, keeping those of each client in `sites` if that is cheap."""
        keeper = SiteKeeper(made=self.agreement.basis is not None)
        tallied = self._tally(step, keeper.passing(replies))
        self.sites = keeper.sites(name for name in self.contributors if name in tallied.clients)
        return tallied

    def settle(self) -> None:
        """Ask clients for column sums and fix the study's standardisation."""
        if self.agreement.study is not None and self.agreement.basis is None:
            told: Any = self.sum(self._method.column_sums)
            basis = self.agreement.study.basis(told["sums"], told["squares"], float(told["n"]))
            self.agreement = replace(self.agreement, basis=basis)

    def centre(self) -> None:
        """Fix a centre that clients subtract from columns far from zero, if the method's result does not depend on it.

        It is the pooled mean of these columns, from a sum that is asked for only if a client has such columns.
        """
        if self.agreement.far and self._method.finds_columns and self._method.shift_invariant:
            told: Any = self.sum(self._method.column_sums)
            centre = far_columns.centre(told["sums"], told["squares"], float(told["n"]))
            if centre is not None:
                self.agreement = replace(self.agreement, basis=Basis.about(centre, self.agreement.columns))

    def _seen(self, total: Moments) -> Moments:
        """Return pooled moments in the columns that methods see; the first such moments fix the basis."""
        if self.agreement.study is None or self.agreement.basis is not None:
            return total
        basis = self.agreement.study.basis_of(total)
        self.agreement = replace(self.agreement, basis=basis)
        return basis.moments(total)

    def pool(self, step: Callable[..., Moments]) -> Pool:
        """Return the pooled moments, which are also kept in the result, so that clients can join and leave."""
        recorder = Recorder(digests=not self._channel.transport.trusted)
        tallied = self._tally_sites(step, recorder.passing(self.ask(step)))
        if not isinstance(tallied.first, Moments):
            raise InvalidParameter(
                f"step {step.__name__!r} must reply with moments, got a {type(tallied.first).__name__}"
            )
        known = recorder.contributions(tallied.clients)
        shape, study = self.shape, None if self.agreement.basis else self.agreement.study
        targets = self.agreement.targets
        self.pooled = Pool(tallied.total, tuple(self.contributors), shape, targets, known, study)
        if self.pooled.basis is not None:
            self.agreement = replace(self.agreement, basis=self.pooled.basis)
        return self.pooled

    def mean(
        self,
        step: Step,
        payload: Payload = None,
        *,
        weighted: bool = True,
        weights: Mapping[str, float] | None = None,
        heard: Callable[[str, Any], None] | None = None,
        **options: Any,
    ) -> Any:
        """Return the mean of the replies (arrays, or lists or dicts of them), weighted by numbers of samples.

        `weights` are other weights, by client; with `weighted=False` all clients weigh the same. The mean is computed
        in double precision and returned in that of the replies, so that the order of clients hardly matters. `heard` is
        called with each client's name and reply as they come, for a method that also needs a part of each.
        """
        weight: Callable[[str], float] = (lambda name: float(self.samples[name])) if weighted else lambda _: 1.0
        if weights is not None:
            asked = [name for name, _ in self._quorum.tasks(payload, options.get("to"), options.get("per_client"))]
            if options.get("per_client") is None:
                options["to"] = asked
            weight = checked_weights(weights, asked, weighted=weighted).__getitem__
        replies = self.ask(step, payload, **options)
        tallied = self._tally(step, replies if heard is None else telling(replies, heard), weight)
        if weights is not None and not tallied.weights:
            raise InvalidParameter(f"step {step.__name__!r}: the replies weigh 0 together, so there is no mean")
        return tallied.mean

    def _tally(self, step: Step, replies: Iterable[Reply], weight: Callable[[str], float] | None = None) -> Tally:
        """Return the tally of replies in the most frequent form; a client that replies in another form has failed."""
        total, strangers = tally(replies, weight)
        if strangers:
            self._quorum.lose(strangers, during=f"step {step.__name__!r}")
        if total is None:
            raise self._quorum.unanswered(during=f"step {step.__name__!r}")
        for client in total.clients:
            self._count(client)
        return total

    def sample(self, share: float, *, up_to: float | None = None) -> list[str]:
        """Return a random share of the clients (at least one): the same for any engine and any order of the clients.

        With `up_to` the share itself is drawn, too, evenly between the two.
        """
        return draw_share(self.names, generator(self._seed, self._method.purpose, "sample", self.round), share, up_to)

    def rounds_of(self, count: int, *, first: int = 0) -> Iterator[int]:
        """Yield the round numbers first … count - 1, keeping `round` in step."""
        for self.round in range(first, count):
            yield self.round

    def save(self, state: Payload, *, whole: bool = False) -> None:
        """Save the method's state after this round, if the engine keeps checkpoints.

        What clients remember is not saved. With `whole` the state is said to be all of it, and nothing is saved if
        clients remember something.
        """
        if self.checkpoint is not None:
            self.checkpoint.save(state, whole=whole)

    def restore(self) -> Payload:
        """Return the last saved state of an interrupted run, None for a new run; clients must be sent their part."""
        return None if self.checkpoint is None else self.checkpoint.restore()

    def report(
        self,
        round: int,
        model: Model | None = None,
        *,
        per_client: Mapping[str, Model] | Callable[[], Mapping[str, Model]] | None = None,
    ) -> None:
        """Record the evaluation after a round: of the model (None: each client's own), or of a model `per_client`.

        A function returns models that are made for the report alone: its time is not charged to the method, and it is
        not called if no client has test samples.
        """
        self.round = round
        before = perf_counter(), process_time(), self._channel.transport.client_seconds
        if callable(per_client):
            per_client = per_client() if any(self.tested.values()) else {}
        evaluation = self.evaluate(model, per_client=per_client)
        after = perf_counter(), process_time(), self._channel.transport.client_seconds
        for clock, begun, ended in zip(self.reporting, before, after, strict=True):
            self.reporting[clock] += ended - begun
        if evaluation.tested:
            self.rounds.append(evaluation.counts())

    def warn_of_two(self, what: str) -> None:
        """Warn before something is sent from which each of two contributors can subtract its own part.

        Within one process no party can learn it. Otherwise the warning is noted in the result, too.
        """
        if len(self.contributors) == 2 and not self._channel.transport.trusted:
            told = f"with two contributors, what comes down gives each of them the other's {what}: ask a third to join"
            warnings.warn(told, Revealing, stacklevel=3)
            self.note("reveals", told)

    def note(self, name: str, value: Payload) -> None:
        """Add a note to the result; reports draw notes that are matrices, such as a matrix of weights."""
        self.notes[name] = value

    def evaluate(self, model: Model | None = None, *, per_client: Mapping[str, Model] | None = None) -> Evaluation:
        """Return the evaluation of the model (None: each client's own) on the clients' test samples, from sums.

        With `per_client` each client scores the model that it is sent; the others are not asked. A client that fails
        is listed in the evaluation, and stays in the run.
        """
        models = dict.fromkeys(self.present, model) if per_client is None else per_client
        asked = {name: models[name] for name in self.present if name in models}
        able = {name: model for name, model in asked.items() if self.tested[name]}
        if not able:
            return Evaluation()
        failures: dict[str, FedgramError] = {}
        answers = self.ask(self._method.evaluate, per_client=able, counted=False, failures=failures)
        sums = {reply.client: reply.value for reply in answers if reply.value is not None}
        tested = {name: self.tested[name] if name in sums else 0 for name in self.present}
        found = {client: self.targets.performance(value, tested[client]) for client, value in sums.items()}
        return Evaluation(found, tested, {name: str(error) for name, error in failures.items()})

    def ask(
        self,
        step: Step,
        payload: Payload = None,
        *,
        to: Iterable[str] | None = None,
        per_client: Mapping[str, Payload] | None = None,
        counted: bool = True,
        failures: dict[str, FedgramError] | None = None,
    ) -> Iterator[Reply]:
        """Yield replies as `call` does, without counting their clients as contributors.

        With `failures`, clients that fail are noted there, and stay in the run.
        """
        name, tasks = step.__name__, self._quorum.tasks(payload, to, per_client)
        failed: dict[str, FedgramError] = {}
        yield from self._channel.ask(name, tasks, self.agreement, failed, round=self.round, counted=counted)
        if failures is not None:
            failures.update(failed)
        elif failed:
            self._quorum.lose(failed, during=f"step {name!r}")
