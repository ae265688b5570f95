"""Experiments: scenarios and what is run in them, and the results in `results.jsonl`."""

from fedgram.experiments.experiment import Experiment, Run, read_file, runs_of
from fedgram.experiments.loader import Loader
from fedgram.experiments.runner import Outcome, execute, finished
from fedgram.experiments.scenario import Scenario

__all__ = ["Experiment", "Loader", "Outcome", "Run", "Scenario", "execute", "finished", "read_file", "runs_of"]
