"""The server's side of a run: asking clients for steps, and adding up what they reply."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil
from numbers import Integral
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from fedgram.core import wire
from fedgram.core.columns import Columns
from fedgram.core.errors import ClientFailed, FedgramError, InvalidParameter, MissingClients, Revealing, UnknownName
from fedgram.core.labels import Classes, shorten
from fedgram.core.randomness import generator
from fedgram.core.wire import Payload
from fedgram.evaluation import Evaluation
from fedgram.models import Model, sent_columns
from fedgram.moments.moments import Moments
from fedgram.protocol import replies
from fedgram.protocol.contributions import Contributions, Recorder
from fedgram.protocol.fit import Pool, Traffic
from fedgram.protocol.totals import Tally, tally
from fedgram.protocol.transport import Reply, Transport

if TYPE_CHECKING:
    from fedgram.protocol.method import Method

NO_SAMPLES = "no samples"
# Called as replies arrive: the step, the round, how many replies are there, and how many were asked for.
Progress: TypeAlias = Callable[[str, int, int, int], None]
Step: TypeAlias = Callable[..., Any]
T = TypeVar("T")


class Clients:
    """The clients as a method's `serve` sees them."""

    def __init__(
        self,
        transport: Transport,
        *,
        method: "Method",
        seed: int = 0,
        require: str | float = "all",
        progress: Progress | None = None,
    ) -> None:
        self.round = 0
        self.traffic = Traffic()
        self.rounds: list[Evaluation] = []
        self.total: Moments | None = None
        self.contributions: Contributions | None = None
        self.message: Payload = None  # what was published, where moments alone do not give it again
        self.classes: Classes | None = None
        self.shape: tuple[int, ...] = ()  # of a sample
        self.features = ""  # their fingerprint
        self.columns: Columns = ()  # their names, in the agreed order
        self.notes: dict[str, Payload] = {}
        self.reporting = {"wall": 0.0, "cpu": 0.0, "clients": 0.0}  # seconds
        self.samples: dict[str, int] = {}
        self.tested: dict[str, int] = {}
        self._gone: dict[str, str] = {}  # who cannot be asked any more, and why
        self._heard: set[str] = set()
        self._transport, self._method, self._seed = transport, method, seed
        self._progress = progress
        self._require = _checked(require, len(transport.names))
        self._rng: tuple[int, np.random.Generator] | None = None

    @property
    def names(self) -> list[str]:
        """Clients that can be asked: they have samples and have not failed."""
        return [name for name in self._transport.names if name not in self._gone]

    @property
    def present(self) -> list[str]:
        """Clients that have not failed, those without samples included."""
        return [name for name in self._transport.names if self._gone.get(name, NO_SAMPLES) == NO_SAMPLES]

    @property
    def contributors(self) -> list[str]:
        """Clients whose replies have entered the result, in the engine's order."""
        return [name for name in self._transport.names if name in self._heard]

    @property
    def absent(self) -> dict[str, str]:
        """Clients that have not contributed and will not, with the reason."""
        return {name: why for name, why in self._gone.items() if name not in self._heard}

    @property
    def lost(self) -> dict[str, str]:
        """Clients that have contributed and then failed, with the reason."""
        return {name: why for name, why in self._gone.items() if name in self._heard}

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
        that names those who failed, unless `require` lets it go on without them.
        """
        for reply in self.ask(step, payload, to=to, per_client=per_client):
            self._heard.add(reply.client)
            yield reply

    def each(self, step: Step, payload: Payload = None, **options: Any) -> None:
        """Ask clients for a step whose replies do not matter."""
        for _ in self.ask(step, payload, **options):
            pass

    def sum(self, step: Callable[..., T], payload: Payload = None, **options: Any) -> T:
        """Return the sum of the replies: moments, or arrays, or lists or dicts of them."""
        return cast("T", self._tally(step, self.ask(step, payload, **options)).total)

    def pool(self, step: Callable[..., Moments]) -> Pool:
        """Return all clients' moments added up, and leave them with the result: clients can then join and leave."""
        recorder = Recorder(digests=not self._transport.trusted)
        tallied = self._tally(step, recorder.passing(self.ask(step)))
        if not isinstance(tallied.first, Moments):
            raise InvalidParameter(
                f"step {step.__name__!r} must reply with moments, got a {type(tallied.first).__name__}"
            )
        self.total, self.contributions = tallied.total, recorder.contributions(tallied.clients)
        return Pool(self.total, len(self.contributors), self.shape)

    def mean(self, step: Step, payload: Payload = None, *, weighted: bool = True, **options: Any) -> Any:
        """Return the mean of the replies (arrays, or lists or dicts of them), weighted by numbers of samples.

        It is added up in double precision and has the replies' own: the order of the clients hardly shows.
        """
        weight = self._weight if weighted else lambda _: 1.0
        return self._tally(step, self.ask(step, payload, **options), weight).mean

    def _weight(self, client: str) -> float:
        return float(self.samples[client])

    def _tally(self, step: Step, replies: Iterable[Reply], weight: Callable[[str], float] | None = None) -> Tally:
        """Add up the replies of one form; who replies in another is a client that failed."""
        total, strangers = tally(replies, weight)
        if strangers:
            self.lose(strangers, during=f"step {step.__name__!r}")
        if total is None:
            raise MissingClients(f"step {step.__name__!r}: none of the clients that were asked has replied")
        self._heard.update(total.clients)
        return total

    def sample(self, share: float) -> list[str]:
        """Return a random share of the clients (at least one): the same for any engine and any order of the clients."""
        if not 0 < share <= 1:
            raise InvalidParameter(f"the share of clients must be more than 0 and at most 1, got {share}")
        names = self.names
        rng = generator(self._seed, self._method.purpose, "sample", self.round)
        chosen = set(rng.choice(sorted(names), size=max(1, round(share * len(names))), replace=False).tolist())
        return [name for name in names if name in chosen]

    def rounds_of(self, count: int) -> Iterator[int]:
        """Yield the round numbers 0 … count - 1, keeping `round` in step."""
        for self.round in range(count):
            yield self.round

    def report(self, round: int, model: Model | None = None) -> None:
        """Record how good the model is after a round (None: each client's own)."""
        self.round = round
        before = perf_counter(), process_time(), self._transport.client_seconds
        evaluation = self.evaluate(model)
        after = perf_counter(), process_time(), self._transport.client_seconds
        for clock, begun, ended in zip(self.reporting, before, after, strict=True):
            self.reporting[clock] += ended - begun
        if evaluation is not None:
            self.rounds.append(evaluation)

    def warn_of_two(self, what: str) -> None:
        """Warn before something is sent from which each of two contributors can subtract its own part.

        In one process nobody is there to learn it. Elsewhere the warning stays with the result, too.
        """
        if len(self.contributors) == 2 and not self._transport.trusted:
            told = f"with two contributors, what comes down gives each of them the other's {what}: ask a third to join"
            warnings.warn(told, Revealing, stacklevel=3)
            self.note("reveals", told)

    def note(self, name: str, value: Payload) -> None:
        """Leave something with the result that is worth seeing; reports draw matrices, such as one of weights."""
        self.notes[name] = value

    def evaluate(self, model: Model | None = None) -> Evaluation | None:
        """Let clients score the model (None: each its own) on their own test samples; only counts come back.

        A client that cannot is listed in the evaluation; the model is what it is, and not lost for that.
        """
        able = [name for name in self.present if self.tested[name]]
        if not able:
            return None
        failures: dict[str, FedgramError] = {}
        answers = self.ask(self._method.evaluate, model, to=able, counted=False, failures=failures)
        correct = {reply.client: reply.value for reply in answers if reply.value is not None}
        tested = {name: self.tested[name] if name in correct else 0 for name in self.present}
        return Evaluation(correct, tested, {name: str(error) for name, error in failures.items()})

    def lose(self, failures: Mapping[str, FedgramError], *, during: str) -> None:
        """Go on without some clients, or end the run if too few are left."""
        self._gone.update({name: f"{during}: {error}" for name, error in failures.items()})
        what = "; ".join(f"client {name!r}: {error}" for name, error in failures.items())
        if self._require == "all" and failures:
            raise ClientFailed(f"{during}: {what}") from next(iter(failures.values()))
        left, required = len(self.names), self._required()
        if left < required:
            raise MissingClients(f"{during}: {left} clients left, {required} required; {what or 'the rest is empty'}")

    def leave_out(self, name: str) -> None:
        """Go on without a client that has no samples; it is nobody's loss."""
        self._gone[name] = NO_SAMPLES

    def _required(self) -> int:
        """Return how many clients with samples must be left; those known to have none are nobody's loss."""
        filled = len(self._transport.names) - list(self._gone.values()).count(NO_SAMPLES)
        if self._require == "all":
            return filled
        # A fraction is what the user wrote in decimals: 0.07 of 100 is 7.
        return self._require if isinstance(self._require, int) else ceil(self._require * filled - 1e-9)

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
        """Do what `call` does, for messages that are no contribution to the result.

        With `failures`, clients that fail are noted there, and stay with the run.
        """
        name = step.__name__
        expected = replies.expected(type(self._method), name)  # type: ignore[arg-type]
        asked = self._recipients(to, per_client)
        failed: dict[str, FedgramError] = {}
        requests = self._requests(name, asked, payload, per_client, counted=counted)
        for done, (client, answer) in enumerate(self._transport.exchange(name, requests), start=1):
            try:
                if isinstance(answer, Exception):
                    raise answer
                if counted:
                    self.traffic.count(client, up=len(answer))
                value = wire.decode(answer, sender=None if self._transport.trusted else client, finite=True)
                question = self._question(client, payload if per_client is None else per_client[client])
                replies.check(value, expected(self._method, question) if callable(expected) else expected, question)
            except FedgramError as error:
                failed[client] = error
                continue
            finally:
                if self._progress is not None:
                    self._progress(name, self.round, done - len(failed), len(asked))
            yield Reply(client, value)
        if failures is not None:
            failures.update(failed)
        elif failed:
            self.lose(failed, during=f"step {name!r}")

    def _question(self, client: str, payload: Payload) -> replies.Question:
        return replies.Question(
            client,
            payload,
            self.round,
            self.classes or (),
            self.shape,
            self.features,
            self.samples.get(client, 0),
            self.tested.get(client, 0),
            self.columns,
        )

    def _recipients(self, to: Iterable[str] | None, per_client: Mapping[str, Payload] | None) -> list[str]:
        if to is not None and per_client is not None:
            raise InvalidParameter("give `to` or `per_client`, not both: the keys of per_client say who is asked")
        chosen = per_client if per_client is not None else to
        if chosen is None:
            return self.names
        asked = [chosen] if isinstance(chosen, str) else list(chosen)
        if strangers := set(asked).difference(self._transport.names):
            raise UnknownName("client", min(strangers), self._transport.names)
        return asked

    def _requests(
        self,
        step: str,
        names: list[str],
        payload: Payload,
        per_client: Mapping[str, Payload] | None,
        *,
        counted: bool,
    ) -> Iterator[tuple[str, bytes]]:
        envelope = {
            "step": step,
            "round": self.round,
            "seed": self._seed,
            "classes": self.classes and shorten(self.classes),
            **sent_columns(self.columns),
        }
        sealed = not self._transport.trusted  # what stays in this process cannot be damaged on the way
        shared = None if per_client is not None else wire.encode(envelope | {"payload": payload}, sealed=sealed)
        for name in names:
            request = shared or wire.encode(envelope | {"payload": (per_client or {})[name]}, sealed=sealed)
            if counted:
                self.traffic.count(name, down=len(request))
            yield name, request


def _checked(require: Any, clients: int) -> Any:
    if require == "all":
        return require
    if isinstance(require, Integral) and not isinstance(require, bool) and 1 <= int(require) <= clients:
        return int(require)
    if isinstance(require, float) and 0 < require <= 1:
        return require
    raise InvalidParameter(
        f"require must be 'all', a number of clients from 1 to {clients}, or a fraction such as 0.8, got {require!r}"
    )
