"""Experiments: scenarios and what is run in them, and the results in `results.jsonl`."""

from fedgram.experiments.config import Experiment, read_file
from fedgram.experiments.grid import Run, runs_of
from fedgram.experiments.runner import Outcome, execute, finished
from fedgram.experiments.scenario import Scenario

__all__ = ["Experiment", "Outcome", "Run", "Scenario", "execute", "finished", "read_file", "runs_of"]
