"""The state of a long run in a file, so that an interrupted run goes on after the last round that it finished."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from fedgram.core import wire
from fedgram.core.errors import FedgramError
from fedgram.core.files import read_regular, replace_file
from fedgram.core.wire import Payload
from fedgram.core.wire.container import MOST_BYTES
from fedgram.evaluation import Evaluation

if TYPE_CHECKING:
    from fedgram.protocol.channel import Channel
    from fedgram.protocol.clients import Clients
    from fedgram.protocol.quorum import Quorum


class Checkpoint:
    """A file with a method's state after a round, and all that the run had counted by then.

    A run that goes on from it ends with the same result, bytes and curves as one that was never interrupted, and its
    seconds are those of both parts. `identity` says which run of which data it is of; a file of another run, or one
    that cannot be read, is not used.
    """

    def __init__(
        self,
        path: Path,
        identity: Callable[[], Mapping[str, Any]],
        clients: "Clients",
        channel: "Channel",
        quorum: "Quorum",
    ) -> None:
        self._path, self._tell = path, identity
        self._clients, self._channel, self._quorum = clients, channel, quorum
        self._wall, self._cpu = perf_counter(), process_time()
        self._is_ours = False  # whether the file is of this run
        self.before = {"wall": 0.0, "cpu": 0.0, "clients": 0.0}  # seconds of the run before it was interrupted

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """The run and its data, found out when a method first asks: it takes a pass over all samples."""
        return dict(self._tell())

    def save(self, state: Payload) -> None:
        """Write the state of the method after this round; a reader sees the old file or all of the new one."""
        content = {
            "identity": self._identity,
            "state": state,
            "traffic": self._channel.traffic.by_client,
            "timing": self._channel.timing.taken_apart(),
            "rounds": [asdict(report) for report in self._clients.rounds],
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
