"""Thousands of damaged and forged results files: a line that cannot be read is named, and the rest makes a page."""

import copy
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedgram.core.errors import FedgramError
from fedgram.experiments.results import load_results
from fedgram.report import formats
from fedgram.report.metrics import chosen
from fedgram.report.report_page import render_page
from fedgram.report.result_tables import (
    accuracy_table,
    beside_table,
    cost_table,
    reach_tables,
    round_table,
    tables_by_column,
    time_table,
)
from support import campaign
from support.made_up import comparison
from support.mutations import changed_within, damaged
from support.numeric import NUMERIC
from support.page import taken_apart

KEPT = Path(__file__).parents[2] / "docs" / "results" / "data"
CONTROL = "".join(map(chr, (*range(9), *range(11, 32), 0x7F, 0x9B)))


def kept(name, most=12):
    """Return some of the records that the documentation keeps."""
    lines = (KEPT / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:most]]


def few():
    return list(comparison(methods=3, clients=(4,), alphas=(1.0, 0.1), seeds=2, rounds=3))


ORIGINALS = {
    "made up": few,
    "numeric": lambda: NUMERIC,
    "AFL's table": lambda: kept("afl-table-1.jsonl"),
    "CIFAR-10": lambda: kept("gradient-cifar10.jsonl"),
}


@pytest.fixture(params=ORIGINALS.values(), ids=ORIGINALS)
def records(request):
    return request.param()


def shown(path):
    """Return a page and all tables of results, as the command makes them."""
    found = load_results([path])
    metric = chosen(found, None)
    tables = [accuracy_table(found, metric), beside_table(found, metric), cost_table(found)]
    tables += [round_table(found), time_table(found), *reach_tables(found, metric).values()]
    tables += [table for tables in tables_by_column(found).values() for table in tables]
    texts = [write(table) for write in (formats.markdown, formats.latex) for table in tables if table.rows]
    for table in tables:
        formats.terminal(table)
    return found, render_page(found, title="Forged"), [*texts, formats.comma_separated(found, metric)]


def forged(records, rng):
    """Return lines of which some were changed by a writer who knows JSON."""
    changed = copy.deepcopy(records)
    for _ in range(rng.integers(1, 4)):
        changed_within(changed[rng.integers(len(changed))], rng)
    return "\n".join(json.dumps(record) for record in changed).encode() + b"\n"


def tried(path, data):
    """Show a file, or return False where it is refused as a whole."""
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found, page, texts = shown(path)
        except FedgramError as error:
            assert "\n" not in str(error)
            assert not set(CONTROL).intersection(str(error)), "names are written out"
            return False
    assert all("\n" not in str(damage.reason) for damage in found.damaged)
    for text in (page, *texts):
        text.encode()
    assert not set(CONTROL).intersection("".join(texts))
    assert "<script>" not in "".join(texts[:-1])
    taken_apart(page)  # its data are JSON
    return True


@pytest.mark.campaign
def test_damaged_results_are_shown_or_refused(records, tmp_path):
    rng = np.random.default_rng(22)
    data = "\n".join(json.dumps(record) for record in records).encode() + b"\n"
    assert tried(tmp_path / "results.jsonl", data)
    for _ in range(campaign.size(4)):
        tried(tmp_path / "results.jsonl", damaged(data, rng))


@pytest.mark.campaign
def test_forged_results_are_shown_or_refused(records, tmp_path):
    rng = np.random.default_rng(23)
    taken = [tried(tmp_path / "results.jsonl", forged(records, rng)) for _ in range(campaign.size(8))]
    assert any(taken)
