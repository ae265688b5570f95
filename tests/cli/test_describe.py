"""`fedgram describe`: the figures of a store's contributions are those of the parties' raw tables."""

import csv
import io
import json

import numpy as np
import pytest

from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter
from fedgram.exchange.format import fgm
from fedgram.exchange.store.describing import describe
from fedgram.exchange.store.study_store import Store
from fedgram.moments.moments import Moments
from support.command import fedgram, run, told
from support.exchange import PARTIES
from support.stores import REGIONAL, STUDY, store_of, summary


@pytest.fixture
def store(folder):
    """Return the folder with a store that all three parties have joined."""
    for name in PARTIES:
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key")
    fedgram("join", "store", *(f"{name}.fgm" for name in PARTIES))
    return folder


def rows_of(folder, *names):
    """Return the raw cells of parties' tables by column."""
    rows = [row for name in names for row in csv.DictReader(io.StringIO((folder / f"{name}.csv").read_text()))]
    return {column: [row[column] for row in rows] for column in rows[0]}


def check(figures, cells, levels):
    known = [cell for cell in cells if cell]
    assert (figures["known"], figures["missing"]) == (len(known), len(cells) - len(known))
    if levels:
        assert figures["counts"] == [known.count(level) for level in levels]
        assert figures["shares"] == pytest.approx([known.count(level) / len(known) for level in levels])
    else:
        numbers = np.array(known, dtype=float)
        assert figures["mean"] == pytest.approx(numbers.mean(), rel=1e-12)
        assert figures["deviation"] == pytest.approx(numbers.std(ddof=1), rel=1e-12)


def test_json_has_the_figures_of_the_raw_tables(store):
    found = told("describe", "store")
    assert (found["study"], found["samples"]) == ("walks", 180)
    assert [site["name"] for site in found["sites"]] == list(PARTIES)
    for variable in found["variables"]:
        for names, figures in [(PARTIES, variable["pooled"]), *(((n,), variable["sites"][n]) for n in PARTIES)]:
            check(figures, rows_of(store, *names)[variable["name"]], variable["levels"])
    assert found["notes"]
    assert told("describe", "store", "--correlations")["names"] == ["age", "steps", "smoker"]


def test_text_shows_each_figure_in_the_units_of_the_study(store):
    found = fedgram("describe", "store")
    ages = np.array(rows_of(store, *PARTIES)["age"], dtype=float)
    [line] = [line for line in found.splitlines() if line.startswith("age (years)")]
    assert f"{ages.mean():.1f} ({ages.std(ddof=1):.1f})" in line
    for name in PARTIES:
        own = np.array(rows_of(store, name)["age"], dtype=float)
        assert f"{own.mean():.1f} ({own.std(ddof=1):.1f})" in line
    assert "largest difference" in found
    assert "smoker: yes" in found
    assert "the passport that summarize prints has the number" in found
    pooled_only = fedgram("describe", "store", "--no-sites")
    assert "north" not in pooled_only.splitlines()[1]


def test_csv_has_a_line_for_each_column_level_and_site(store):
    found = list(csv.DictReader(io.StringIO(fedgram("describe", "store", "--csv"))))
    assert len(found) == (2 + 1 + 1 + 2 + 1) * 4
    for row in found:
        cells = rows_of(store, *([row["site"]] if row["site"] else PARTIES))[row["column"]]
        known = [cell for cell in cells if cell]
        assert (int(row["samples"]), int(row["known"])) == (len(cells), len(known))
        if row["kind"] == "number":
            assert float(row["mean"]) == pytest.approx(np.mean(np.array(known, dtype=float)), rel=1e-12)
        else:
            assert int(row["count"]) == known.count(row["level"])
        assert (row["difference"] == "") == (row["site"] == "")
    pooled = csv.DictReader(io.StringIO(fedgram("describe", "store", "--csv", "--no-sites")))
    assert {row["site"] for row in pooled} == {""}


def test_latex_is_a_table_for_a_paper(store):
    found = fedgram("describe", "store", "--latex")
    table = found[found.index(r"\begin{table}") :]
    assert all(line.startswith("%") for line in found[: found.index(r"\begin{table}")].splitlines())
    rows = [line for line in table.splitlines() if line.rstrip().endswith(r"\\")]
    assert {line.count("&") for line in rows} == {5}
    assert r"diagnosis: ill &" in table


def test_correlations_are_printed_instead(store):
    assert "0." in fedgram("describe", "store", "--correlations")
    lines = list(csv.DictReader(io.StringIO(fedgram("describe", "store", "--correlations", "--csv"))))
    cells = rows_of(store, *PARTIES)
    pairs = {(line["column"], line["other"]): line for line in lines}
    assert len(pairs) == 3
    both = [(a, s) for a, s in zip(cells["age"], cells["steps"], strict=True) if s]
    assert int(pairs["steps", "age"]["samples"]) == len(both)
    age, steps = np.array(both, dtype=float).T
    spread = np.std(np.array(cells["age"], dtype=float), ddof=1) * steps.std(ddof=1)
    assert float(pairs["steps", "age"]["correlation"]) == pytest.approx(np.cov(age, steps)[0, 1] / spread, rel=1e-9)


@pytest.mark.parametrize("form", [(), ("--csv",), ("--latex",), ("--json",)])
def test_a_file_gets_what_would_be_printed(store, form):
    done = run("describe", "store", *form, "--out", "table", cwd=store)
    assert (done.returncode, "wrote table" in done.stdout) == (0, True), done.stderr
    printed = run("describe", "store", *form, cwd=store).stdout
    written = (store / "table").read_text()
    assert [line.split() for line in written.splitlines() if line] == [
        line.split() for line in printed.splitlines() if line
    ]
    again = run("describe", "store", *form, "--out", "table", cwd=store)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert run("describe", "store", *form, "--out", "table", "--force", cwd=store).returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("nothing",), "is not a store"),
        (("store", "--csv", "--json"), "expected one form of output"),
        (("store", "--csv", "--latex"), "expected one form of output"),
        (("store", "--out", "none/table"), "is not a folder"),
        (("store", "--out", "store/index.sqlite"), "would be overwritten"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(store, options, words):
    done = run("describe", *options, cwd=store)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert words in (json.loads(line)["error"] if "--json" in options else line)


def test_a_store_without_a_study_is_refused(tmp_path):
    store = Store(tmp_path / "store")
    moments = Moments.of([[1.0], [2.0]], ["ill", "well"], classes=["ill", "well"])
    store.join(fgm.encode("summary", moments, study="", party="north", samples=2))
    with pytest.raises(InvalidData, match="expected contributions under a study"):
        describe(store)


def test_an_empty_store_is_refused(tmp_path):
    store = store_of(tmp_path / "store", "north")
    store.remove("north")
    with pytest.raises(InvalidData, match="no contributions"):
        describe(store)


def test_a_region_is_one_site_and_said_to_be_several_parties(tmp_path):
    region = store_of(tmp_path / "region", "north", "south", study=REGIONAL)
    upper = store_of(tmp_path / "upper", "east", study=REGIONAL)
    [joined] = upper.join(region.combine("region"))
    assert joined.outcome == "joined", joined
    found = describe(upper)
    assert [(site.name, site.samples, site.summaries) for site in found.sites] == [("east", 40, 1), ("region", 80, 2)]
    whole = describe(store_of(tmp_path / "flat", "north", "south", "east", study=REGIONAL))
    for one, other in zip(found.variables, whole.variables, strict=True):
        assert one.pooled == other.pooled
    assert any("region is the sum of 2 parties" in note for note in found.notes)
    assert "region (2 parties)" in fedgram("describe", tmp_path / "upper")


def test_replaced_and_removed_parties_do_not_count(tmp_path):
    store = store_of(tmp_path / "store", "north", "south", "east")
    store.remove("east")
    store.join(summary("south", seed=5), replace=True)
    other = Store(tmp_path / "other", study=STUDY)
    other.join(summary("north"), summary("south", seed=5))
    assert describe(store).variables == other.describe().variables


def test_each_contribution_is_read_once(tmp_path, monkeypatch):
    store, read = store_of(tmp_path / "store", "north", "south", "east"), []
    whole = store.objects.read
    monkeypatch.setattr(store.objects, "read", lambda digest: read.append(digest) or whole(digest))
    describe(store)
    assert sorted(read) == sorted(each.digest for each in store.contributions())


def test_a_lost_contribution_is_told(tmp_path):
    store = store_of(tmp_path / "store", "north", "south")
    store.objects.path(store.contributions()[0].digest).unlink()
    with pytest.raises(FedgramError, match="lost or damaged"):
        describe(store)


def test_many_sites_are_shown_on_request(tmp_path):
    names = [f"site-{k}" for k in range(9)]
    store_of(tmp_path / "store", *names)
    found = fedgram("describe", tmp_path / "store")
    assert "9 sites are not shown" in found
    assert "site-8" not in found.splitlines()[1]
    assert "site-8" in fedgram("describe", tmp_path / "store", "--sites").replace("\n", " ")


def test_a_run_describes_the_rows_that_it_trains_on(folder):
    """With nothing held back, these are the figures of the store that the same tables would make."""
    for name in PARTIES:
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key")
    fedgram("join", "store", *(f"{name}.fgm" for name in PARTIES))
    files = ",".join(f"{name}.csv" for name in PARTIES)
    data = ("--data", files, "--study", "study.toml", "--test-data", files, "--test", "standard")
    found = told("run", "--method", "afl", *data, "--describe")["descriptives"]
    wanted = told("describe", "store")
    assert found["samples"] == wanted["samples"] == 180
    for one, other in zip(found["variables"], wanted["variables"], strict=True):
        assert one["name"] == other["name"]
        for name in PARTIES:
            assert one["sites"][name].keys() == other["sites"][name].keys()
            for what, figure in one["sites"][name].items():
                assert figure == pytest.approx(other["sites"][name][what], rel=1e-9), (one["name"], name, what)
    assert "largest difference" in fedgram("run", "--method", "afl", *data, "--describe")


def test_data_without_a_study_are_not_described(tmp_path):
    done = run("run", "--method", "afl", "--data", "digits", "--clients", "2", "--samples", "100", "--describe")
    assert done.returncode == 2
    assert "--describe: expected a table under a study" in done.stderr


def test_help_shows_an_example():
    assert "fedgram describe store/" in fedgram("describe", "--help")


def test_two_forms_are_refused_before_the_store_is_opened(tmp_path):
    with pytest.raises(InvalidParameter, match="one form"):
        fedgram("describe", tmp_path / "none", "--csv", "--latex")
