"""The engine `flower-sim`: Flower's simulation, whose nodes are processes of Ray on this machine.

Starting Ray takes some ten seconds. A simulation that is opened serves many fits:

    with FlowerSimulation(nodes=20) as engine:
        fg.AFL().fit(clients, engine=engine)
        fg.FedHiP().fit(clients, engine=engine)
"""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedgram.core.classes import Label
from fedgram.core.errors import ClientFailed, FedgramError, InvalidParameter
from fedgram.core.filesystem import file_name
from fedgram.core.threads import processors
from fedgram.data.client import Client
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.grid import Expected, GridTransport, Post, roll_call
from fedgram.engines.flower.isolation import quiet
from fedgram.engines.flower.node import Node, Party, client_app
from fedgram.moments.targets import Targets
from fedgram.protocol import session
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Method, Require
from fedgram.protocol.named_methods import files_of, read_file
from fedgram.protocol.transport import Progress

if TYPE_CHECKING:
    from fedgram.studies.study import Study

NAME = "flower-sim"


class FlowerSimulation:
    """Engine that runs methods on Flower's simulation.

    Parameters
    ----------
    nodes
        The number of clients that it can take, by default that of the first fit.
    workers
        The number of processes that perform steps, by default one per processor.
    timeout
        The seconds that a node may take for a step.
    models
        A folder in which each client keeps its final model, in a folder of its own.

    """

    def __init__(
        self,
        *,
        nodes: int | None = None,
        workers: int | None = None,
        timeout: float | None = None,
        models: str | os.PathLike[str] | None = None,
    ) -> None:
        for what, value in {"nodes": nodes, "workers": workers, "timeout": timeout}.items():
            if value is not None and value <= 0:
                raise InvalidParameter(f"{what} must be positive, got {value}")
        self.nodes, self.workers, self.timeout = nodes, workers or processors(), timeout
        self.models = None if models is None else Path(models).absolute()
        self._running: _Running | None = None

    def __enter__(self) -> Self:
        """Keep the simulation running between fits; it starts with the first one."""
        self._running = _Running(self.workers)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def run(
        self,
        method: Method,
        clients: Sequence[Client],
        *,
        classes: int | Iterable[Label] | Targets | None = None,
        seed: int = 0,
        require: Require = "all",
        progress: Progress | None = None,
        study: "Study | None" = None,
    ) -> Fit:
        """Run the method from hello to evaluation."""
        if self._running is None:
            with self:
                return self.run(
                    method, clients, classes=classes, seed=seed, require=require, progress=progress, study=study
                )
        names = session.unique_names(clients)
        grid = self._running.grid(self.nodes or len(clients))
        if len(clients) > self._running.nodes:
            raise InvalidParameter(
                f"{len(clients)} clients, but the simulation was started for {self._running.nodes}: "
                f"FlowerSimulation(nodes={len(clients)})"
            )
        if study is not None:
            _warn(study, method, clients)
        with self._running.job(method, clients, self.models, study) as job:
            post = Post(grid, self.timeout, watch=self._running.check)
            if progress is not None:
                progress("starting", 0, 0, len(names))
            nodes, _ = roll_call(post, Expected(names), note=job)
            transport = GridTransport(post, nodes, engine=NAME, note=job)
            return session.run(
                method, transport, classes=classes, seed=seed, require=require, progress=progress, study=study
            )


def _warn(study: "Study", method: Method, clients: Sequence[Client]) -> None:
    """Warn here of what clients reveal, because warnings of the nodes' processes are not shown."""
    for client in clients:
        with suppress(FedgramError):
            study.admit(client, method.fewest_samples(len(client.y)))


class _Running:
    """A simulation in a thread of its own; the caller gets its grid."""

    def __init__(self, workers: int) -> None:
        self.nodes = 0
        self._workers = workers
        self._folder = Path(tempfile.mkdtemp(prefix="fedgram-"))
        self._jobs = 0
        self._grid: Future[Grid] = Future()
        self._stop = Event()
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def grid(self, nodes: int) -> Grid:
        """Return the grid; the first call starts the simulation with so many nodes."""
        if self._thread is None:
            self.nodes = nodes
            self._thread = Thread(target=self._simulate, name="fedgram-flower-sim", daemon=True)
            self._thread.start()
        return self._grid.result()

    @contextmanager
    def job(
        self, method: Method, clients: Sequence[Client], models: Path | None, study: "Study | None"
    ) -> Iterator[dict[str, str]]:
        """Write method and clients to files for the nodes; yield the note with the path of the files."""
        from ray import cloudpickle  # also takes methods that were written in a notebook

        self._jobs += 1
        folder = self._folder / str(self._jobs)
        folder.mkdir()
        try:
            for k, client in enumerate(clients):
                kept = None if models is None else models / file_name(client.name)
                party = Party(client, method, kept, study)
                (folder / f"{k}.pickle").write_bytes(cloudpickle.dumps(party))  # type: ignore[no-untyped-call]
                (folder / f"{k}.name").write_text(client.name, encoding="utf-8")
                (folder / f"{k}.files").write_text(json.dumps([str(file) for file in files_of(method)]))
            yield {"folder": str(folder)}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def check(self) -> None:
        """Raise if the simulation has broken down, so that no node can answer any more."""
        if self._thread is not None and not self._thread.is_alive():
            raise ClientFailed(f"Flower's simulation has ended: {self._error or 'no reason given'}")

    def stop(self) -> None:
        """End the simulation and all its processes."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _simulate(self) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._grid.set_result(grid)
            self._stop.wait()

        try:
            with quiet(), _errors_only():
                from flwr.simulation import run_simulation

                run_simulation(
                    server,
                    client_app(Node(name=_simulated_name, party=_simulated_party)),
                    self.nodes,
                    backend_config={
                        "init_args": {"num_cpus": self._workers, "log_to_driver": False, "logging_level": "ERROR"},
                        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    },
                )
        except BaseException as error:
            self._error = error
            if not self._grid.done():
                self._grid.set_exception(ClientFailed(f"Flower's simulation cannot be started: {error}"))


@contextmanager
def _errors_only() -> Iterator[None]:
    """Let Flower's log show errors only."""
    flower = logging.getLogger("flwr")
    level = flower.level
    flower.setLevel(logging.ERROR)
    try:
        yield
    finally:
        flower.setLevel(level)


def _simulated_name(message: Message, context: Context) -> str:
    path = _laid_out(message, context, "name")
    if not path.exists():
        raise ClientFailed("this node has no client: there are fewer clients than nodes")
    return path.read_text(encoding="utf-8")


def _simulated_party(message: Message, context: Context) -> Party:
    from ray import cloudpickle

    for file in json.loads(_laid_out(message, context, "files").read_text()):
        read_file(Path(file))  # pickle names a module for the method, which exists once its file is read
    party = cloudpickle.loads(_laid_out(message, context, "pickle").read_bytes())
    assert isinstance(party, Party)
    return party


def _laid_out(message: Message, context: Context, kind: str) -> Path:
    return Path(flower_messages.note(message)["folder"]) / f"{context.node_config['partition-id']}.{kind}"
