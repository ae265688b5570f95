"""Experiments: a description, its runs, their results in `results.jsonl`, and tables, plots and a page of those."""

from fedgram.experiments.config import Experiment, read_file
from fedgram.experiments.grid import Run, Setting, runs_of
from fedgram.experiments.runner import Outcome, execute, finished

__all__ = ["Experiment", "Outcome", "Run", "Setting", "execute", "finished", "read_file", "runs_of"]
