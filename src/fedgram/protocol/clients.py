"""The server's side of a run: asking clients for steps, and adding up what they reply."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from fedgram.core.columns import Columns
from fedgram.core.errors import FedgramError, InvalidParameter, Revealing
from fedgram.core.randomness import generator
from fedgram.core.wire import Payload
from fedgram.evaluation import Evaluation
from fedgram.models import Model
from fedgram.moments import digits
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.numeric_evaluation import NumericEvaluation
from fedgram.protocol import judging
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.channel import Channel
from fedgram.protocol.checkpoint import Checkpoint
from fedgram.protocol.contributions import Recorder
from fedgram.protocol.pool import Pool
from fedgram.protocol.quorum import Quorum, draw_share
from fedgram.protocol.recipe import basis_of
from fedgram.protocol.sites import SiteKeeper, Sites
from fedgram.protocol.totals import Tally, checked_weights, tally, telling
from fedgram.protocol.transport import Reply

if TYPE_CHECKING:
    from fedgram.protocol.method import Method

Step: TypeAlias = Callable[..., Any]
T = TypeVar("T")


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
        self.rounds: list[Evaluation] = []  # what was reported
        self.pooled: Pool | None = None  # pooled moments, where the method makes its model of nothing else
        self.message: Payload = None  # what was published, where moments alone do not give it again
        self.notes: dict[str, Payload] = {}
        self.sites: Sites | None = None  # each client's moments, where they are summed up
        self.checkpoint: Checkpoint | None = None  # where a long run can be taken up again
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
        """Seconds from request to reply, by client, in the step that was asked for last; evaluations aside."""
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
        """Ask clients for a step and yield their replies, as a stream.

        All get `payload`, or each its own from `per_client`. `to` names who is asked (default: everyone who can be). A
        client that fails is never passed over in silence: when all have been heard, the run ends with an error
        that names those who failed, unless `require` lets it go on without them. If none has replied it ends, too.
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
        """Add up moments, and keep those of each client if that is cheap."""
        keeper = SiteKeeper(made=self.agreement.basis is not None)
        tallied = self._tally(step, keeper.passing(replies))
        self.sites = keeper.sites(name for name in self.contributors if name in tallied.clients)
        return tallied

    def settle(self) -> None:
        """Let samples have the columns that a recipe makes of them, from one sum that is asked for now."""
        if self.agreement.recipe is not None and self.agreement.basis is None:
            told: Any = self.sum(self._method.column_sums)
            basis = self.agreement.recipe.basis(told["sums"], told["squares"], float(told["n"]))
            self.agreement = replace(self.agreement, basis=basis)

    def centre(self) -> None:
        """Agree on what is subtracted from columns that are far from zero, where the result does not depend on it.

        It is their pooled mean, from one sum that is asked for only if a client has such columns.
        """
        if self.agreement.far and self._method.finds_columns and self._method.shift_invariant:
            told: Any = self.sum(self._method.column_sums)
            centre = digits.centre(told["sums"], told["squares"], float(told["n"]))
            if centre is not None:
                self.agreement = replace(self.agreement, basis=Basis.about(centre, self.agreement.columns))

    def _seen(self, total: Moments) -> Moments:
        """Return pooled moments in the columns that methods see; the first that come say which these are."""
        if self.agreement.recipe is None or self.agreement.basis is not None:
            return total
        basis = basis_of(self.agreement.recipe, total)
        self.agreement = replace(self.agreement, basis=basis)
        return basis.moments(total)

    def pool(self, step: Callable[..., Moments]) -> Pool:
        """Return all clients' moments added up, and leave them with the result: clients can then join and leave."""
        recorder = Recorder(digests=not self._channel.transport.trusted)
        tallied = self._tally_sites(step, recorder.passing(self.ask(step)))
        if not isinstance(tallied.first, Moments):
            raise InvalidParameter(
                f"step {step.__name__!r} must reply with moments, got a {type(tallied.first).__name__}"
            )
        known = recorder.contributions(tallied.clients)
        shape, recipe = self.shape, None if self.agreement.basis else self.agreement.recipe
        outcomes = len(self.agreement.outcomes)
        self.pooled = Pool(tallied.total, tuple(self.contributors), shape, known, recipe, outcomes)
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

        `weights` are others, by client; with `weighted=False` all clients weigh the same. The mean is added up in
        double precision and has the replies' own: the order of the clients hardly shows. `heard` is called with each
        client's name and reply as they come, for a method that also needs a part of each.
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
            raise InvalidParameter(f"step {step.__name__!r}: those who replied weigh 0 together, so there is no mean")
        return tallied.mean

    def _tally(self, step: Step, replies: Iterable[Reply], weight: Callable[[str], float] | None = None) -> Tally:
        """Add up the replies of one form; who replies in another is a client that failed."""
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

    def save(self, state: Payload) -> None:
        """Save what the method needs to go on after this round, where the engine keeps checkpoints."""
        if self.checkpoint is not None:
            self.checkpoint.save(state)

    def restore(self) -> Payload:
        """Return what an interrupted run saved last, None if it is to begin; clients must be told again."""
        return None if self.checkpoint is None else self.checkpoint.restore()

    def report(
        self,
        round: int,
        model: Model | None = None,
        *,
        per_client: Mapping[str, Model] | Callable[[], Mapping[str, Model]] | None = None,
    ) -> None:
        """Record how good the model is after a round (None: each client's own), or each the one that it is given.

        A function returns models that are made for the report alone: its time is not charged to the method, and it is
        not called where no client has test samples.
        """
        self.round = round
        before = perf_counter(), process_time(), self._channel.transport.client_seconds
        if callable(per_client):
            per_client = per_client() if any(self.tested.values()) else {}
        evaluation = self.evaluate(model, per_client=per_client)
        after = perf_counter(), process_time(), self._channel.transport.client_seconds
        for clock, begun, ended in zip(self.reporting, before, after, strict=True):
            self.reporting[clock] += ended - begun
        if evaluation is not None:
            self.rounds.append(evaluation.counts())

    def warn_of_two(self, what: str) -> None:
        """Warn before something is sent from which each of two contributors can subtract its own part.

        In one process nobody is there to learn it. Elsewhere the warning stays with the result, too.
        """
        if len(self.contributors) == 2 and not self._channel.transport.trusted:
            told = f"with two contributors, what comes down gives each of them the other's {what}: ask a third to join"
            warnings.warn(told, Revealing, stacklevel=3)
            self.note("reveals", told)

    def note(self, name: str, value: Payload) -> None:
        """Leave something with the result that is worth seeing; reports draw matrices, such as one of weights."""
        self.notes[name] = value

    def evaluate(
        self, model: Model | None = None, *, per_client: Mapping[str, Model] | None = None
    ) -> Evaluation | None:
        """Let clients score the model (None: each its own) on their own test samples; only sums come back.

        With `per_client` each scores the model that it is sent, and who is sent none is not asked. A client that cannot
        is listed in the evaluation; the model is what it is, and not lost for that. Numbers are neither right nor
        wrong: for numeric outcomes this is None, and `errors` has how far off they are.
        """
        if self.agreement.outcomes:
            return None
        models = dict.fromkeys(self.present, model) if per_client is None else per_client
        asked = {name: models[name] for name in self.present if name in models}
        return judging.count_right(self, self._method.evaluate, asked)

    def errors(self) -> NumericEvaluation | None:
        """Let clients sum up the errors of their models in numeric outcomes; None where there are classes."""
        return judging.sum_up_errors(self, self._method.sum_errors) if self.agreement.outcomes else None

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
        """Like `call`, but repliers do not count as contributors.

        With `failures`, clients that fail are noted there, and stay with the run.
        """
        name, tasks = step.__name__, self._quorum.tasks(payload, to, per_client)
        failed: dict[str, FedgramError] = {}
        yield from self._channel.ask(name, tasks, self.agreement, failed, round=self.round, counted=counted)
        if failures is not None:
            failures.update(failed)
        elif failed:
            self._quorum.lose(failed, during=f"step {name!r}")
