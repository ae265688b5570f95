"""One run of a method over any transport: hello, serve, receive, evaluate; and its state in a file, to go on from."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from fedgram.core import wire
from fedgram.core.classes import NUMERIC, Classes, Label, as_classes
from fedgram.core.container import MOST_BYTES
from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter, Mismatch
from fedgram.core.filesystem import read_regular, replace_file
from fedgram.core.randomness import read_seed
from fedgram.core.wire import Payload
from fedgram.data.client import Client
from fedgram.evaluation import Evaluation
from fedgram.models import Model
from fedgram.moments.moments import described, study_of
from fedgram.moments.targets import Targets
from fedgram.pipeline import Pipeline
from fedgram.protocol.agreement import agree
from fedgram.protocol.channel import Channel
from fedgram.protocol.clients import Clients
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Method, Require, check_outcomes
from fedgram.protocol.quorum import Quorum
from fedgram.protocol.transport import Progress, Transport

if TYPE_CHECKING:
    from fedgram.studies.study import Study


class Checkpoint:
    """A file with a method's state after a round, and all that the run had counted by then.

    A run that goes on from it ends with the same result, bytes and curves as one that was never interrupted, and its
    seconds are those of both parts. `identity` describes the run and its data, and `remembering` says whether clients
    remember something. A file of another run, or one that cannot be read, is not used.
    """

    def __init__(
        self,
        path: Path,
        identity: Callable[[], Mapping[str, Any]],
        remembering: Callable[[], bool],
        clients: "Clients",
        channel: "Channel",
        quorum: "Quorum",
    ) -> None:
        self._path, self._tell, self._remembering = path, identity, remembering
        self._clients, self._channel, self._quorum = clients, channel, quorum
        self._wall, self._cpu = perf_counter(), process_time()
        self._is_ours = False  # whether the file is of this run
        self.before = {"wall": 0.0, "cpu": 0.0, "clients": 0.0}  # seconds of the run before it was interrupted

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """The run and its data, found out when a method first asks: it takes a pass over all samples."""
        return dict(self._tell())

    def save(self, state: Payload, *, whole: bool = False) -> None:
        """Write the state of the method after this round; a reader sees the old file or all of the new one.

        With `whole` it is written only if clients remember nothing.
        """
        if whole and self._remembering():
            return
        content = {
            "identity": self._identity,
            "state": state,
            "traffic": self._channel.traffic.by_client,
            "timing": self._channel.timing.taken_apart(),
            "rounds": [report.to_fields() for report in self._clients.rounds],
            "notes": self._clients.notes,
            "reporting": self._clients.reporting,
            "heard": sorted(self._quorum.heard),
            "gone": self._quorum.gone,
            "seconds": {
                "wall": self.before["wall"] + perf_counter() - self._wall,
                "cpu": self.before["cpu"] + process_time() - self._cpu,
                "clients": self.before["clients"] + self._channel.transport.client_seconds,
            },
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, wire.encode(content))
        self._is_ours = True

    def restore(self) -> Payload:
        """Return the state that was saved, with the counts of that run restored; None where there is none to use."""
        try:
            content = wire.decode(read_regular(self._path, most=MOST_BYTES), sender=str(self._path))
        except FileNotFoundError:
            return None
        except (OSError, FedgramError) as error:
            warnings.warn(f"{self._path}: the checkpoint cannot be read, so the run begins anew: {error}", stacklevel=2)
            return None
        if not isinstance(content, dict) or content.get("identity") != self._identity:
            warnings.warn(f"{self._path}: the checkpoint is of another run, so this one begins anew", stacklevel=2)
            return None
        self._channel.traffic.by_client.update(content["traffic"])
        self._channel.timing.put_together(content["timing"])
        self._clients.rounds[:] = [Evaluation.of_fields(report) for report in content["rounds"]]
        self._clients.notes.update(content["notes"])
        self._clients.reporting.update(content["reporting"])
        for now, then in ((self._quorum.heard, content["heard"]), (self._quorum.gone, content["gone"])):
            now.clear()
            now.update(then)
        self._quorum.lose({}, during="resuming")  # as many as this run requires must be left
        self.before.update(content["seconds"])
        self._is_ours = True
        return content["state"]

    def remove(self) -> None:
        """Delete the file of this run, which has ended."""
        if self._is_ours:
            self._path.unlink(missing_ok=True)


NO_CLIENTS = "no clients: give at least one"


def run(
    method: Method,
    transport: Transport,
    *,
    classes: int | Iterable[Label] | Targets | None,
    seed: int,
    require: Require,
    progress: Progress | None,
    study: "Study | None" = None,
    checkpoint: tuple[Path, Callable[[], str], Callable[[], bool]] | None = None,
) -> Fit:
    """Run a method and return its fit (without personal models, which stay with the clients).

    `checkpoint` is a file in which a method that can be interrupted saves its state, a function that returns the
    fingerprint of the clients' data, and one that says whether clients remember something; the file goes when the run
    has ended.
    """
    started, cpu_started = perf_counter(), process_time()
    seed = read_seed(seed)
    if not transport.names:
        raise InvalidData(NO_CLIENTS)
    channel = Channel(transport, method, seed=seed, progress=progress)
    quorum = Quorum(transport.names, require)
    known, declared = _agreed(method, classes, study)
    agreement = replace(agree(channel, quorum, known, study), declared=declared)
    if study is None and study_of(agreement.features):
        raise Mismatch(
            f"clients have {described(agreement.features)}, and no study was given that makes their columns: "
            "fit(…, study=study)"
        )
    if study is not None:
        if agreement.features != study.features:
            raise Mismatch(f"clients have {described(agreement.features)}, and this is {described(study.features)}")
        agreement = replace(agreement, study=study)
    clients = Clients(method, agreement, channel, quorum, seed=seed)
    if checkpoint is not None:
        path, fingerprint, remembering = checkpoint
        about = {"method": method.name, "revision": method.revision, "settings": method.settings(), "seed": seed}
        about |= {"classes": list(agreement.classes), "features": agreement.features}
        clients.checkpoint = Checkpoint(
            path, lambda: about | {"data": fingerprint()}, remembering, clients, channel, quorum
        )
    if study is None:
        clients.centre()
    elif not method.finds_columns:
        clients.settle()
    model = method.serve(clients)
    if model is not None:
        if not isinstance(model, Model):
            raise InvalidParameter(f"serve of {method.name} must return a model or None, got a {type(model).__name__}")
        model = Pipeline.of(model, clients.agreement.basis, clients.targets, agreement.columns)
        # A client without a personal model gets the global one, so that every client can predict afterwards.
        without = [name for name in clients.present if not method.personal or name not in clients.names]
        clients.each(method.receive, model, to=without)
    # Reports of rounds are for the reader; without them the result would be the same.
    before = clients.checkpoint.before if clients.checkpoint else {"wall": 0.0, "cpu": 0.0, "clients": 0.0}
    seconds = before["wall"] + perf_counter() - started - clients.reporting["wall"]
    cpu_seconds = before["cpu"] + process_time() - cpu_started - clients.reporting["cpu"]
    client_seconds = before["clients"] + transport.client_seconds - clients.reporting["clients"]
    server_seconds = cpu_seconds - client_seconds if transport.trusted else cpu_seconds
    timing = channel.timing.by_client
    evaluation = clients.evaluate()
    pool = clients.pooled
    if clients.checkpoint is not None:
        clients.checkpoint.remove()
    return Fit(
        model=model,
        method=method.name,
        settings=method.settings(),
        seed=seed,
        contributors=tuple(quorum.contributors),
        absent=quorum.absent,
        lost=quorum.lost,
        traffic=channel.traffic,
        evaluation=evaluation,
        rounds=clients.rounds,
        seconds=seconds,
        cpu_seconds={"clients": client_seconds, "server": max(0.0, server_seconds)},
        timing=timing,
        engine=transport.engine,
        carried=dict(transport.carried),
        total=None if pool is None else pool.sent,
        study=study,
        basis=clients.agreement.basis,
        targets=declared,
        contributions=None if pool is None else pool.contributions,
        message=clients.message,
        notes=clients.notes,
        shape=agreement.shape,
        sites=clients.sites and clients.sites.agreed(clients.agreement.basis, clients.targets),
    )


def _agreed(
    method: Method, given: int | Iterable[Label] | Targets | None, study: "Study | None"
) -> tuple[Classes, Targets | None]:
    """Return the agreed classes, () if clients' labels decide, and targets of another kind, if they were given.

    Raises InvalidParameter, before anything is sent, if the method needs classes and the outcome is a number.
    """
    declared = given if isinstance(given, Targets) else None
    if declared is not None and not (declared.has_classes or method.numeric):
        raise InvalidParameter(
            f"classes: expected names or a number of classes for {method.name}, got {type(declared).__name__}; "
            "use a method for numbers, such as afl, fedhip, fedgram or local"
        )
    if declared is not None and (study is not None or declared.names):
        raise InvalidParameter(
            f"classes: expected names or a number of classes, got {type(declared).__name__}; numeric outcomes, and the "
            "classes of a study, are those that the study names: leave them out"
        )
    classes: Classes = ()
    if given is not None:
        classes = given.classes if isinstance(given, Targets) else as_classes(given)
    if study is None or study.targets.has_classes:
        return classes, declared
    names = study.targets.names
    check_outcomes([method], names)
    if classes not in ((), NUMERIC):
        outcomes = ", ".join(map(repr, names))
        raise InvalidParameter(f"classes {classes[:5]} were given, but outcome {outcomes} is a number: leave them out")
    return NUMERIC, None


def unique_names(clients: Sequence[Client]) -> list[str]:
    """Return the clients' names, which tell them apart."""
    names = [client.name for client in clients]
    if not names:
        raise InvalidData(NO_CLIENTS)
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InvalidData(f"{count} clients are named {name!r}: names must be unique")
    return names
