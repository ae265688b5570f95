"""The model that a node has in its folder. Of several runs at once, that of the run that started last stays there."""

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from time import time

from fedgram.core import wire
from fedgram.core.files import locked, read_regular, replace_file, writing

MODEL_FILE = "model.safetensors"
RUN_FILE, LOCK_FILE = "model.run.json", ".model.lock"
_TOLD = "the node cannot write its model into its own folder"
log = logging.getLogger("flwr")  # so that it shows where Flower's own lines do


def keep(model: object, folder: Path) -> Path:
    """Write a node's model into its folder, whole or not at all, for `fedgram predict`."""
    path = folder / MODEL_FILE
    with writing(path, told=_TOLD):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, wire.encode(model))
    return path


def start_of_run(folder: Path | None) -> float:
    """Return the time as the start of a run: after that of the model that is there, even if the clock was set back."""
    _, last = _run_of(folder) if folder is not None else ("", 0.0)
    return max(time(), last + 1e-3)


def keep_of_run(model: object, folder: Path, run: str, started: float) -> None:
    """Keep the model of a run, unless there is one of a run that started later; which run it is of stands beside it.

    The run that ends last need not be the one that somebody wanted last: it may have waited for a node that was gone.
    """
    with locked(folder / LOCK_FILE, nullcontext, told=_TOLD):  # runs are processes of their own
        other, last = _run_of(folder)
        if last > started:
            log.warning("run %s: its model is not kept, because run %s, which started later, has one here", run, other)
            return
        keep(model, folder)
        with writing(folder / RUN_FILE, told=_TOLD):
            replace_file(folder / RUN_FILE, json.dumps({"run": run, "started": started}).encode())


def _run_of(folder: Path) -> tuple[str, float]:
    """Return which run the model in the folder is of, and when that started; ("", 0) if nobody knows."""
    if not (folder / MODEL_FILE).exists():
        return "", 0.0
    try:
        told = json.loads(read_regular(folder / RUN_FILE, most=1 << 12))
        return str(told["run"]), float(told["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0.0
