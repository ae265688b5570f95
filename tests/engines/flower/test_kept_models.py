"""The model that stays in a node's folder during several runs at once."""

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from fedgram.core import wire
from fedgram.core.errors import InvalidData, tell
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.node import LOCK_FILE, MODEL_FILE, RUN_FILE, keep_of_run
from fedgram.protocol.fit import load_model
from support.flower_grid import LocalGrid


class RunOfOne:
    """A run of `local` with one node; a run with another ridge ends with another model."""

    def __init__(self, node, ridge):
        self.grid = LocalGrid([node], {"method": "local", "settings.ridge": ridge})
        self.ask("hello")

    def ask(self, step, **request):
        whole = {"round": 0, "seed": 0, "step": step, "classes": None, "payload": None} | request
        self.grid.push_messages([Message(flower_messages.letter(wire.encode(whole)), 1, flower_messages.STEP)])
        assert not self.grid.seen[-1].has_error(), self.grid.seen[-1].error.reason

    def end(self):
        self.ask("train", classes=[0, 1])


def test_of_runs_at_once_the_model_of_the_one_that_started_last_stays(node, caplog):
    """The run that ends last may only have waited for a lost node."""
    folder = Path(node["folder"])
    first, second, third = (RunOfOne(node, ridge) for ridge in (1.0, 100.0, 1e4))
    first.end()
    old = load_model(folder / MODEL_FILE).weights
    second.end()
    new = load_model(folder / MODEL_FILE).weights
    assert not np.array_equal(new, old)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        first.end()
    assert np.array_equal(load_model(folder / MODEL_FILE).weights, new)
    assert "its model is not kept, because run 7, which started later, has one here" in caplog.text
    # A run without a model takes no place; nor does an empty file.
    (folder / RUN_FILE).write_text("?")
    first.end()
    assert np.array_equal(load_model(folder / MODEL_FILE).weights, old)
    third.end()
    assert not np.array_equal(load_model(folder / MODEL_FILE).weights, old)


def test_a_clock_that_was_set_back_does_not_lose_a_model(node, monkeypatch):
    kept, folder = sys.modules["fedgram.engines.flower.node"], Path(node["folder"])
    RunOfOne(node, 1.0).end()
    old = load_model(folder / MODEL_FILE).weights
    monkeypatch.setattr(kept, "time", lambda: 0.0)
    RunOfOne(node, 100.0).end()
    assert not np.array_equal(load_model(folder / MODEL_FILE).weights, old)


@pytest.mark.parametrize("name", [LOCK_FILE, MODEL_FILE, RUN_FILE])
def test_a_folder_that_cannot_be_written_is_told_without_its_name(tmp_path, name):
    (tmp_path / name).mkdir()  # no file can be there
    with pytest.raises(InvalidData, match=f"cannot write .*{name}") as caught:
        keep_of_run({"weights": np.zeros(3)}, tmp_path, "7", 1.0)
    assert tell(caught.value) == "the node cannot write its model into its own folder"
