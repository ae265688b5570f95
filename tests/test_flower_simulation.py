"""Every registered method on Flower's simulation: one start of Ray serves all tests of this file."""

from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram.engines.flower.node import MODEL_FILE, folder_name
from fedgram.engines.flower.simulation import FlowerSimulation
from fedgram.errors import InvalidData, InvalidParameter
from fedgram.methods.fit import load_model


def test_contract_on_the_simulation(tmp_path, subtests):
    def personal(name):
        return load_model(tmp_path / folder_name(name) / MODEL_FILE)

    with FlowerSimulation(nodes=9, workers=2, models=tmp_path) as engine:
        for name in fg.registry:
            for check in checks.ENGINE_CHECKS:
                with subtests.test(f"{name}: {check.__name__}"):
                    check(fg.registry[name](), engine, personal)
