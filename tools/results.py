"""Builds the tables of docs/results from the records in docs/results/data: `make results`. Nothing is run for it.

    python tools/results.py                         fills in the tables of all pages
    python tools/results.py --check                 only says which pages are out of date
    python tools/results.py keep results/NAME       slims a finished comparison into docs/results/data/NAME.jsonl

NAME.toml beside NAME.jsonl describes the tables; without NAME.jsonl a table shows the paper's figures alone. A page
says where a table goes with `<!-- table: afl-1 -->` and `<!-- /table -->`; what is between the two is replaced.

    data = ["NAME"]                # files of records; this is the default
    [[tables]]
    name = "afl-1"                 # as on the page
    metric = "pooled"              # one of MEASURES; client_mean by default
    round = "both"                 # last (default), best, both ("last / best", compared by the best), or a number
    compare = false                # show no differences, for instance because the paper's data are others
    why = "The paper …"            # a difference of more than three points needs a sentence, here or in its row
    columns = [{ name = "α = 0.1", partition = "dirichlet:0.1" }, { name = "s = 4", partition = "shards:4" }]
    [[tables.rows]]
    name = "FedAvg"                # all other keys of rows, columns and the table say which runs a cell is made of:
    label = "fedavg"               # label, method, a setting such as clients or partition, or a hyper-parameter
    paper = [64.02, ""]            # a figure for each column, "" where the paper has none
    why = "…"

A row or a column may have its own `metric`, `round` or `reach` (an accuracy in %, for metrics that end with `_to`).
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedgram.core.files import replace_file
from fedgram.experiments import journal
from fedgram.experiments.results import METRICS, Column, Result, load_results
from fedgram.report.measures import MEASURES, at_round

PAGES = Path(__file__).parent.parent / "docs" / "results"
MARKER = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
TOO_FAR = 3.0  # points of difference that need a sentence
NOTHING = "–"
# What a slim record keeps besides the scenario's settings.
KEPT = ["kind", "schema", "key", "label", "method", "settings", "seed", "reference", "require", "status", "error"]
KEPT += ["seconds", "cpu_seconds", "timing", "peak_memory"]
SETTINGS = tuple(field.name for field in fields(Column))
WORDS = {"name", "paper", "why", "metric", "round", "reach", "compare", "columns", "rows"}  # keys that choose no runs


@dataclass(frozen=True)
class Cell:
    """Our figures by seed at the last and at the best round, and the paper's."""

    last: Sequence[float]
    best: Sequence[float]
    paper: float | None
    metric: str
    round: str
    failed: int = 0  # runs that have no figures

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        ours = self.last if self.round == "last" else self.best
        return fmean(ours) - self.paper if ours and self.paper is not None else None

    def text(self, *, compare: bool) -> str:
        """Write the cell: ours, and in brackets the paper's and the difference."""
        shown = {"last": [self.last], "best": [self.best], "both": [self.last, self.best]}[self.round]
        ours = " / ".join(self._mean(values) for values in shown) if self.last else NOTHING
        if self.failed:
            ours = f"{ours}, {self.failed} more failed" if self.last else "failed"
        if self.paper is None:
            return ours
        theirs = self._number(self.paper)
        if self.difference is None or not compare:
            return f"{ours} ({theirs})"
        return f"{ours} ({theirs}, {self._number(self.difference, sign='+')})"

    def _mean(self, values: Sequence[float]) -> str:
        spread = f" ± {self._number(stdev(values))}" if len(values) > 1 else ""
        return self._number(fmean(values)) + spread

    def _number(self, value: float, sign: str = "") -> str:
        return format(value, f"{sign}.2f") if self.metric in METRICS else _short(value, sign)


def _short(value: float, sign: str) -> str:
    return format(value, f"{sign},.0f") if abs(value) >= 100 else format(value, f"{sign}.3g")


def build(table: Mapping[str, Any], runs: Sequence[Result]) -> str:
    """Return a table as Markdown, with a line that says what its figures are."""
    name, columns, rows = table["name"], table["columns"], table["rows"]
    compare, used = table.get("compare", True), []
    lines = [f"| | {' | '.join(column['name'] for column in columns)} |", "| --- |" + " ---: |" * len(columns)]
    reasons = [table["why"]] if "why" in table else []
    for row in rows:
        figures = row.get("paper", [""] * len(columns))
        if len(figures) != len(columns):
            raise SystemExit(f"table {name}, row {row['name']}: {len(figures)} figures for {len(columns)} columns")
        cells = []
        for column, figure in zip(columns, figures, strict=True):
            about = {**table, **row, **column, "name": f"{row['name']}, {column['name']}"}
            chosen = _chosen(name, about, runs)
            used += chosen
            cells.append(_cell(about, chosen, None if figure == "" else float(figure)))
        lines.append(f"| {row['name']} | {' | '.join(cell.text(compare=compare) for cell in cells)} |")
        reasons += [f"{row['name']}: {row['why']}"] if "why" in row else []
        for column, cell in zip(columns, cells, strict=True):
            far = compare and cell.metric in METRICS and abs(cell.difference or 0) > TOO_FAR
            if far and not {"why"} & {*table, *row}:
                raise SystemExit(
                    f"table {name}: {row['name']}, {column['name']} is {cell.difference:+.2f} points from the paper: "
                    "say why in the row"
                )
    notes = [f"- {reason}" for reason in reasons]
    return "\n".join([_caption(table, used), "", *lines, *([""] if notes else []), *notes]) + "\n"


def _chosen(table: str, about: Mapping[str, Any], runs: Sequence[Result]) -> list[Result]:
    """Return a cell's runs, one for each seed."""
    wanted = {key: value for key, value in about.items() if key not in WORDS}
    found = [run for run in runs if all(_value(run, key) == value for key, value in wanted.items())]
    if len(seeds := [run.seed for run in found]) > len(set(seeds)):
        twins = ", ".join(sorted({run.label for run in found}))
        raise SystemExit(f"table {table}, cell {about['name']} takes several runs of one seed ({twins}): say more")
    return sorted(found, key=lambda run: run.seed)


def _value(run: Result, key: str) -> Any:
    if key in SETTINGS:
        return getattr(run.column, key)
    return getattr(run, key) if key in ("label", "method", "seed") else run.settings.get(key)


def _cell(about: Mapping[str, Any], runs: Sequence[Result], paper: float | None) -> Cell:
    metric, round_, reach = about.get("metric", "client_mean"), about.get("round", "last"), about.get("reach", 0.0)
    measured = [run for run in runs if run.error is None]
    if isinstance(round_, int):
        curves = [run.rounds.get(metric, ()) for run in measured]
        known = [100 * curve[round_ - 1] for curve in curves if len(curve) >= round_]
        return Cell(known, known, paper, metric, "last", len(runs) - len(measured))
    last = [value for run in measured if (value := MEASURES[metric].of(run, reach)) is not None]
    best = [at_round(run, metric, best=True) for run in measured] if metric in METRICS else last
    known = [value for value in best if value is not None]
    return Cell(last, known, paper, metric, round_, len(runs) - len(measured))


def _caption(table: Mapping[str, Any], used: Sequence[Result]) -> str:
    """Say what the figures are, as the records have it."""
    cells = [{**table, **row, **column} for row in table["rows"] for column in table["columns"]]
    metrics = dict.fromkeys(about.get("metric", "client_mean") for about in cells)
    said = ["; ".join(MEASURES[metric].about for metric in metrics)]
    if used:
        columns = {run.column: None for run in used}
        data = dict.fromkeys(
            f"{column.data}{f' through {column.backbone}' if column.backbone else ''}, "
            + ("all samples" if column.samples is None else f"{column.samples:,} samples")
            for column in columns
        )
        seeds = sorted({run.seed for run in used})
        said += [" and ".join(data), f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"]
    else:
        said.append("not run yet")
    rounds = {about.get("round", "last") for about in cells}
    if rounds & {"best", "both"}:
        said.append("last / best round" if "both" in rounds else "best round")
    if any("paper" in row for row in table["rows"]):
        compared = "the paper's figure and how far ours is above it" if table.get("compare", True) else "the paper's"
        said.append(f"in brackets {compared}")
    text = "; ".join(said)
    return f"*{text[0].upper()}{text[1:]}.*"


def tables(folder: Path) -> dict[str, str]:
    """Return every table that a folder of records describes, by name."""
    made: dict[str, str] = {}
    for path in sorted(folder.glob("*.toml")):
        described = tomllib.loads(path.read_text(encoding="utf-8"))
        files = [folder / f"{name}.jsonl" for name in described.get("data", [path.stem])]
        there = [file for file in files if file.exists()]
        runs = load_results(there).runs if there else []
        for table in described["tables"]:
            if table["name"] in made:
                raise SystemExit(f"{path}: there is another table {table['name']!r}: give it another name")
            made[table["name"]] = build(table, runs)
    return made


def filled(page: str, made: Mapping[str, str]) -> str:
    """Return a page with its tables filled in."""

    def fill(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if name not in made:
            raise SystemExit(f"a page asks for the table {name!r}, which no .toml in docs/results/data describes")
        return f"{start}\n{made[name]}\n{end}"

    return MARKER.sub(fill, page)


def out_of_date(pages: Path = PAGES) -> dict[Path, str]:
    """Return the pages that are not what the records make of them, each as it should be."""
    made, asked, stale = tables(pages / "data"), set(), {}
    for path in sorted(pages.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        asked |= {name for _, name, _ in MARKER.findall(text)}
        if (new := filled(text, made)) != text:
            stale[path] = new
    if unused := made.keys() - asked:
        raise SystemExit(f"no page shows the table {min(unused)!r}: put its marker there, or take the table away")
    return stale


def slim(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of runs without what no table needs; `fedgram report` still reads them."""
    return [_slim(record) for record in records if record.get("kind", "run") == "run"]


def _slim(record: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: record[name] for name in (*KEPT, *SETTINGS) if record.get(name) is not None}
    if record.get("accuracy"):
        kept["accuracy"] = {name: round(value, 6) for name, value in record["accuracy"].items()}
    # Traffic is one number, the mean of the clients, and of rounds stay four digits of two accuracies.
    kept |= {way: [round(fmean(record[way]))] for way in ("up", "down") if record.get(way)}
    curves = {name: values for name, values in record.get("rounds", {}).items() if name != "worst_decile"}
    if curves:
        kept["rounds"] = {name: [round(value, 4) for value in values] for name, values in curves.items()}
    return kept


def keep(results: Path, folder: Path = PAGES / "data") -> Path:
    """Slim a finished comparison, and write it beside the others under the name of its folder."""
    path = results / "results.jsonl" if results.is_dir() else results
    lines = list(journal.read(path))
    if damaged := [line for line in lines if isinstance(line, journal.Damage)]:
        raise SystemExit(f"{damaged[0]}: mend it by `fedgram compare --resume` first")
    records = slim(line.record for line in lines if isinstance(line, journal.Line))
    target = folder / f"{path.parent.resolve().name if results.is_dir() else path.stem}.jsonl"
    text = "".join(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n" for record in records)
    replace_file(target, text.encode(), mode=0o644)
    return target


def main(arguments: Sequence[str]) -> None:
    """Do what the command line says."""
    match list(arguments):
        case ["keep", *folders] if folders:
            for folder in folders:
                path = keep(Path(folder))
                print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        case []:
            for path, text in out_of_date().items():
                path.write_text(text, encoding="utf-8")
                print(f"{path.name}: tables filled in")
        case ["--check"]:
            if stale := out_of_date():
                sys.exit(f"not what the records say: {', '.join(path.name for path in stale)}; run `make results`")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
