"""Builds the tables of README.md and docs from the records in docs/results/data: `make results`. No run is needed.

    python tools/results.py                         fills in the tables of all pages
    python tools/results.py --check                 only names the pages that are out of date
    python tools/results.py keep results/NAME       adds a comparison's runs, slimmed, to docs/results/data/NAME.jsonl
    python tools/results.py baselines               computes the lines "own most frequent class" that are missing

NAME.toml beside NAME.jsonl describes the tables. Without NAME.jsonl a table shows the paper's figures alone, or "not
run yet". On a page `<!-- table: afl-1 -->` and `<!-- /table -->` mark a table's place. The text between the two is
replaced; all other text is kept.

    data = ["NAME"]                # files of records; this is the default
    command = "fedgram compare …"  # makes the records; shown while there are none
    [[tables]]
    name = "afl-1"                 # as on the page
    metric = "pooled"              # one of MEASURES; client_mean by default
    round = "both"                 # last (default), best, both ("last / best", compared by the best), or a number
    compare = false                # show no differences, for instance because the paper's data are others
    columns = [{ name = "α = 0.1", partition = "dirichlet:0.1" }, { name = "s = 4", partition = "shards:4" }]
    reasons = [{ columns = ["s = 4"], why = "…", order = "…" }]
    [[tables.rows]]
    name = "FedAvg"                # all other keys of rows, columns and the table choose the runs of a cell:
    label = "fedavg"               # label, method, a setting such as clients or partition (`samples = "all"` is a
                                   # setting, too), or a hyper-parameter
    paper = [64.02, ""]            # a figure for each column, "" where the paper has none
    why = "…"

A row or a column may have its own `metric`, `round` or `reach` (an accuracy in %, for metrics that end with `_to`;
"paper" is the paper's figure in the cell). `rounds` takes the costs of so many rounds; `times = "AFL"` divides a cell
by that of the row AFL, and `saved_by = "AFL"` is that row's saving in %.

A figure that is far from the paper's needs a reason. Far means more than three points, with three seeds or more one
point that is also three standard deviations, or a fifth of a cost. A pair of methods in another order than the paper's
needs a reason, too, unless they are closer than 0.3 points, a standard deviation over seeds, or a twentieth of a cost.
`why` explains figures and `order` explains ranks: in a row, in a column, or in `reasons`, which name the rows, the
columns, or both. A table as a whole cannot have a reason.

A line below the table names methods whose records are of an earlier revision than the code.

References (all data in one place, clients alone, and always the client's own most frequent class) follow the rows
wherever records have them. † marks figures at most half a point above the client's most frequent class.
"""

import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedgram.core.filesystem import replace_file
from fedgram.experiments import journal
from fedgram.experiments.results import METRICS, Column, Result, load_results, most_frequent_record, recorded_evaluation
from fedgram.experiments.scenario import Scenario
from fedgram.experiments.variants import CENTRALISED, MOST_FREQUENT
from fedgram.protocol.registry import registry
from fedgram.report.metrics import at_round, bytes_a_round, client_seconds, round_count, rounds_to
from fedgram.report.result_tables import NEAR, TRIVIAL

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "results"
MARKER = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
TOO_FAR, CLOSE = 3.0, 0.3  # points from the paper that need a reason; and between two methods that count as equal
SEEDS, SURELY = (
    3,
    1.0,
)  # with this number of seeds, this number of points needs a reason if it is three standard deviations, too
COST_TOO_FAR, COST_CLOSE = 1.25, 0.05  # the same for costs, as a ratio and as a share
NOTHING = "–"
MB, KIB = 1e6, 1024
BASELINES = "most-frequent-class.jsonl"
ALONE = "local"
REFERENCES = (CENTRALISED, ALONE, MOST_FREQUENT)
# What a slim record keeps besides the scenario's settings.
KEPT = ["kind", "schema", "key", "label", "method", "settings", "revision", "seed", "reference", "require", "status"]
KEPT += ["error", "finished", "seconds", "cpu_seconds", "timing", "peak_memory"]
SETTINGS = tuple(field.name for field in fields(Column))
# Keys that do not choose runs.
WORDS = {"name", "paper", "why", "order", "metric", "round", "rounds", "reach", "times", "saved_by", "compare"}
WORDS |= {"columns", "rows", "reasons", "command", "queued"}


@dataclass(frozen=True)
class Measure:
    """A cost or accuracy of a run, described in words; `of` also takes the accuracy in % that is to be reached."""

    about: str
    of: Callable[[Result, float], float | None]


def _traffic(run: Result) -> float | None:
    return None if run.bytes_per_client is None else run.bytes_per_client / MB


def _mean(counts: Sequence[int]) -> float | None:
    return sum(counts) / len(counts) / MB if counts else None


def _part(of: Callable[[Result], float | None]) -> Callable[[Result, float], float | None]:
    """Return a function for what a run had spent when it reached an accuracy; all its rounds cost the same."""

    def spent(run: Result, reach: float) -> float | None:
        needed, whole = rounds_to(run, "client_mean", reach), of(run)
        return None if needed is None or whole is None else needed / round_count(run) * whole

    return spent


def _a_round(run: Result, _: float) -> float | None:
    found = bytes_a_round(run)
    return None if found is None else found / KIB


def _cpu_a_round(run: Result, _: float) -> float | None:
    return None if run.cpu is None else run.cpu / round_count(run)


def _client_seconds_a_round(run: Result, _: float) -> float | None:
    total, asked = client_seconds(run), run.timing.get("asked")
    return total / asked if total is not None and asked else None


def _span(name: str) -> Callable[[Result, float], float | None]:
    return lambda run, _: run.timing.get(name)


def _accuracy_at_end(metric: str) -> Callable[[Result, float], float | None]:
    return lambda run, _: at_round(run, metric)


MEASURES = {
    **{metric: Measure(f"{about} in %", _accuracy_at_end(metric)) for metric, about in METRICS.items()},
    "up": Measure("MB a client sends", lambda run, _: _mean(run.up)),
    "down": Measure("MB a client receives", lambda run, _: _mean(run.down)),
    "traffic": Measure("MB a client sends and receives", lambda run, _: _traffic(run)),
    "kib_a_round": Measure("KiB a client sends and receives in a round that it takes part in", _a_round),
    "client_seconds": Measure("seconds of a client", lambda run, _: client_seconds(run)),
    "client_seconds_a_round": Measure("seconds of a client in a round", _client_seconds_a_round),
    "computing": Measure("seconds that a client computes", _span("computing")),
    "idle": Measure("seconds that a client waits for the slowest", _span("idle")),
    "communication": Measure("seconds that messages of a client are under way", _span("communication")),
    "cpu": Measure("CPU seconds of all clients and the server", lambda run, _: run.cpu),
    "cpu_a_round": Measure("CPU seconds of all clients and the server in a round", _cpu_a_round),
    "rounds_to": Measure("rounds to reach the accuracy", lambda run, reach: rounds_to(run, "client_mean", reach)),
    "traffic_to": Measure("MB a client sends and receives to reach the accuracy", _part(_traffic)),
    "cpu_to": Measure("CPU seconds to reach the accuracy", _part(lambda run: run.cpu)),
}


@dataclass(frozen=True)
class Cell:
    """Our figures by seed at the last and at the best round, and the paper's."""

    last: Sequence[float]
    best: Sequence[float]
    paper: float | None
    metric: str
    round: str
    failed: int = 0  # runs without figures
    line: float | None = None  # accuracy of the client's own most frequent class
    share: bool = False  # whether it is a ratio in %

    @property
    def ours(self) -> Sequence[float]:
        """The figures that are compared with the paper's."""
        return self.last if self.round == "last" else self.best

    @property
    def is_points(self) -> bool:
        """Whether differences are points of %."""
        return self.metric in METRICS or self.share

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's figure."""
        return fmean(self.ours) - self.paper if self.ours and self.paper is not None else None

    @property
    def is_far(self) -> bool:
        """Whether the difference to the paper's figure needs a reason."""
        if self.difference is None or self.paper is None:
            return False
        if self.is_points:
            sure = len(self.ours) >= SEEDS and abs(self.difference) > max(SURELY, 3 * _deviation(self.ours))
            return abs(self.difference) > TOO_FAR or sure
        ratio = fmean(self.ours) / self.paper if self.paper else 0.0
        return not 1 / COST_TOO_FAR <= ratio <= COST_TOO_FAR

    def order(self, other: "Cell") -> int:
        """Return 1 if the paper's and our figures are in the same order, -1 if not, 0 if a pair is too close."""
        if self.difference is None or other.difference is None:
            return 0
        signs = []
        for mine, theirs, spread in (
            (fmean(self.ours), fmean(other.ours), max(_deviation(self.ours), _deviation(other.ours))),
            (self.paper or 0.0, other.paper or 0.0, 0.0),
        ):
            least = CLOSE if self.is_points else COST_CLOSE * max(abs(mine), abs(theirs))
            gap = mine - theirs
            signs.append(0 if abs(gap) <= max(least, spread) + 1e-9 else 1 if gap > 0 else -1)
        return signs[0] * signs[1]

    def text(self, *, compare: bool) -> str:
        """Write the cell: ours, and in brackets the paper's and the difference."""
        shown = {"last": [self.last], "best": [self.best], "both": [self.last, self.best]}[self.round]
        ours = " / ".join(self._mean(values) for values in shown) if self.last else NOTHING
        if self.is_trivial:
            ours += f" {TRIVIAL}"
        if self.failed:
            ours = f"{ours}, {self.failed} more failed" if self.last else "failed"
        if self.paper is None:
            return ours
        theirs = self._number(self.paper)
        if self.difference is None or not compare:
            return f"{ours} ({theirs})"
        return f"{ours} ({theirs}, {self._number(self.difference, sign='+')})"

    @property
    def is_trivial(self) -> bool:
        """Whether always predicting the client's most frequent class is nearly as good."""
        return self.line is not None and bool(self.last) and fmean(self.last) <= self.line + NEAR

    def _mean(self, values: Sequence[float]) -> str:
        spread = f" ± {self._number(stdev(values))}" if len(values) > 1 else ""
        return self._number(fmean(values)) + spread

    def _number(self, value: float, sign: str = "") -> str:
        if self.share:
            return format(value, f"{sign}.1f")
        return format(value, f"{sign}.2f") if self.metric in METRICS else _short(value, sign)


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _short(value: float, sign: str) -> str:
    return format(value, f"{sign},.0f") if abs(value) >= 100 else format(value, f"{sign}.3g")


@dataclass(frozen=True)
class Reason:
    """A sentence on some cells of a table: on their figures, or on their order."""

    text: str
    rows: frozenset[str]
    columns: frozenset[str]
    about: str  # "why" or "order"
    where: str

    def explains(self, about: str, row: str, column: str) -> bool:
        """Return whether it explains the figure or the order of a cell."""
        return self.about == about and row in self.rows and column in self.columns

    def __str__(self) -> str:
        if self.about == "order":
            return f"Order{f' ({self.where})' if self.where else ''}: {self.text}"
        return f"{self.where}: {self.text}" if self.where else self.text


def _reasons(table: Mapping[str, Any]) -> list[Reason]:
    """Return the reasons of a table, each with the rows and columns that it explains."""
    name, rows, columns = table["name"], _names(table["rows"]), _names(table["columns"])
    if {"why", "order"} & table.keys():
        raise SystemExit(f"table {name}: a reason belongs to a row, a column, or to those that `reasons` name")
    found = []
    scopes = [({"rows": [row["name"]]}, row) for row in table["rows"]]
    scopes += [({"columns": [column["name"]]}, column) for column in table["columns"]]
    scopes += [(entry, entry) for entry in table.get("reasons", ())]
    for scope, said in scopes:
        if not {"rows", "columns"} & scope.keys():
            raise SystemExit(f"table {name}: an entry of reasons names rows, columns or both")
        mine, at = (frozenset(scope.get(which, all_)) for which, all_ in (("rows", rows), ("columns", columns)))
        if unknown := (mine - {*rows}) | (at - {*columns}):
            raise SystemExit(f"table {name}: reasons name {min(unknown)!r}, which is not a row or column of it")
        everywhere = scope is said and at == {*columns} and mine == {*rows}
        named = [", ".join(scope[which]) for which in ("rows", "columns") if which in scope]
        where = "" if everywhere else "; ".join(named)
        found += [Reason(said[about], mine, at, about, where) for about in ("why", "order") if about in said]
    return found


def _names(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    return [entry["name"] for entry in entries]


def build(table: Mapping[str, Any], runs: Sequence[Result]) -> str:
    """Return a table as Markdown, with a caption."""
    columns, rows, used = table["columns"], table["rows"], []
    for what, names in (("rows", _names(rows)), ("columns", _names(columns))):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise SystemExit(f"table {table['name']}: two {what} are called {twice[0]!r}: give each its own name")
    cells: dict[tuple[str, str], Cell] = {}
    lines = {(run.column, run.seed): run for run in runs if run.method == MOST_FREQUENT}
    for row in rows:
        figures = row.get("paper", [""] * len(columns))
        if len(figures) != len(columns):
            raise SystemExit(
                f"table {table['name']}, row {row['name']}: {len(figures)} figures for {len(columns)} columns"
            )
        for column, figure in zip(columns, figures, strict=True):
            about = {**table, **row, **column, "name": f"{row['name']}, {column['name']}"}
            chosen = _chosen(table["name"], about, runs)
            used += chosen
            paper = None if figure == "" else float(figure)
            if about.get("reach") == "paper":  # then it is the aim, and ours is not compared with it
                about, paper = about | {"reach": paper or 100.0}, None
            cells[row["name"], column["name"]] = _cell(about, chosen, paper, lines)
    if not used and not any("paper" in row for row in rows):
        return _caption(table, used) + "\n"
    cells = {(row["name"], column["name"]): _ratio(table, row, column, cells) for row in rows for column in columns}
    _ask(table, cells)
    compare = table.get("compare", True)
    texts = [[row["name"], *(cells[row["name"], c["name"]].text(compare=compare) for c in columns)] for row in rows]
    texts += _references(table, runs, used)
    drawn = [f"| | {' | '.join(_names(columns))} |", "| --- |" + " ---: |" * len(columns)]
    drawn += [f"| {' | '.join(row)} |" for row in texts]
    notes = [f"- {reason}" for reason in [*_places(table, cells), *_reasons(table), *_older(used)]]
    if any(cell.is_trivial for cell in cells.values()):
        notes.append(f"- {TRIVIAL} at most {NEAR} points above always predicting the client's own most frequent class.")
    return "\n".join([_caption(table, used), "", *drawn, *([""] if notes else []), *notes]) + "\n"


def _ratio(table: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any], cells: Any) -> Cell:
    """Return a cell as a ratio to another row's, where the column asks for that."""
    cell: Cell = cells[row["name"], column["name"]]
    other = column.get("times") or column.get("saved_by")
    if other is None:
        return cell
    if (other, column["name"]) not in cells:
        raise SystemExit(f"table {table['name']}, column {column['name']}: there is no row {other!r}")
    whole = cells[other, column["name"]]
    if other == row["name"] or not (cell.last and whole.last):
        return replace(cell, last=[], best=[], share="saved_by" in column)
    ratio = fmean(cell.last) / fmean(whole.last)
    value = 100 * (1 - 1 / ratio) if "saved_by" in column else ratio
    return replace(cell, last=[value], best=[value], share="saved_by" in column)


def _ask(table: Mapping[str, Any], cells: Mapping[tuple[str, str], Cell]) -> None:
    """Raise SystemExit if a figure, or the order of two methods, differs from the paper's without a reason."""
    reasons = _reasons(table)
    for (row, column), cell in cells.items():
        if cell.is_far and not any(reason.explains("why", row, column) for reason in reasons):
            far = f"{cell.difference:+.2f} points" if cell.is_points else f"{cell.difference:+.3g}"
            raise SystemExit(f"table {table['name']}: {row}, {column} is {far} from the paper: say why")
    for column in _names(table["columns"]):
        for one, other in combinations(_names(table["rows"]), 2):
            if cells[one, column].order(cells[other, column]) < 0 and not any(
                reason.explains("order", row, column) for row in (one, other) for reason in reasons
            ):
                raise SystemExit(
                    f"table {table['name']}: {one} and {other} are not in the paper's order in {column}: say why by "
                    "`order` in the column, or in `reasons`"
                )


def _places(table: Mapping[str, Any], cells: Mapping[tuple[str, str], Cell]) -> list[str]:
    """Return the places of the paper's best methods here, for accuracies of at least three methods."""
    places: dict[tuple[str, int], list[int]] = defaultdict(list)
    for column in _names(table["columns"]):
        known = {
            row: cells[row, column]
            for row in _names(table["rows"])
            if cells[row, column].difference is not None and cells[row, column].metric in METRICS
        }
        if len(known) < 3 or len({cell.paper for cell in known.values()}) == 1:
            continue
        best = max(known, key=lambda row: known[row].paper or 0.0)
        ours = {row: round(fmean(cell.ours), 2) for row, cell in known.items()}
        places[best, len(known)].append(1 + sum(value > ours[best] for value in ours.values()))
    counted = sum(map(len, places.values()))
    return [
        f"The paper's best of {count} rows is {best}{f' in {len(found)} of {counted} columns' if counted > 1 else ''}; "
        f"here it is {', '.join(map(_ordinal, found))}{' in these columns' if len(found) > 1 else ''}."
        for (best, count), found in places.items()
    ]


def _older(used: Sequence[Result]) -> list[str]:
    """Return a note on methods with records of an earlier revision: a new run may have other figures."""
    newest = {method: registry[method].revision for method in {run.method for run in used} & registry.keys()}
    older = sorted({run.method for run in used if run.revision < newest.get(run.method, 0)})
    return [f"Computed by an earlier revision of {' and '.join(f'`{name}`' for name in older)}."] if older else []


def _ordinal(place: int) -> str:
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place if place < 20 else place % 10, 'th') }"


def _references(table: Mapping[str, Any], runs: Sequence[Result], used: Sequence[Result]) -> list[list[str]]:
    """Return the rows of references that records have in the table's settings and the table does not show.

    Rows that choose settings themselves do not share a reference, so theirs are ordinary rows.
    """
    columns = table["columns"]
    metrics = [{**table, **column}.get("metric", "client_mean") for column in columns]
    if not METRICS.keys() & {*metrics} or any({*SETTINGS} & row.keys() for row in table["rows"]):
        return []
    shown, places = {run.key for run in used}, {(run.column, run.seed) for run in used}
    rows = []
    for method in REFERENCES:
        others = [run for run in runs if run.method == method and run.key not in shown]
        mine = [run for run in others if (run.column, run.seed) in places]
        # Of clients alone only the default is shown, if there are records of it.
        mine = [run for run in mine if run.label == method] or mine
        found = [[run for run in mine if _matches(run, _settings_of({**table, **column}))] for column in columns]
        # If a column of the table has runs of several settings, each setting has a row.
        several = [name for name in SETTINGS if any(len({getattr(r.column, name) for r in some}) > 1 for some in found)]
        kinds = [[(run.label, *(run.column.details[name] for name in several)) for run in some] for some in found]
        for kind in dict.fromkeys(kind for some in kinds for kind in some):
            texts = []
            for column, some, named in zip(columns, found, kinds, strict=True):
                about = {**table, **column}
                about["round"] = "last" if isinstance(about.get("round"), str) else about.get("round", "last")
                chosen = [run for run, name in zip(some, named, strict=True) if name == kind]
                texts.append(_cell(about, chosen, None, {}).text(compare=False))
            rows.append([f"*{', '.join(kind)}*", *texts])
    return rows


def _settings_of(about: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if key in SETTINGS and key not in WORDS}


def _matches(run: Result, wanted: Mapping[str, Any]) -> bool:
    return all(_value(run, key) == value for key, value in wanted.items())


def _chosen(table: str, about: Mapping[str, Any], runs: Sequence[Result]) -> list[Result]:
    """Return a cell's runs, one for each seed."""
    wanted = {key: value for key, value in about.items() if key not in WORDS}
    found = [run for run in runs if _matches(run, wanted)]
    if len(seeds := [run.seed for run in found]) > len(set(seeds)):
        twins = ", ".join(sorted({run.label for run in found}))
        raise SystemExit(f"table {table}, cell {about['name']} takes several runs of one seed ({twins}): say more")
    return sorted(found, key=lambda run: run.seed)


def _value(run: Result, key: str) -> Any:
    if key == "samples" and run.column.samples is None:
        return "all"  # TOML has no None
    if key in SETTINGS:
        return getattr(run.column, key)
    return getattr(run, key) if key in ("label", "method", "seed") else run.settings.get(key)


def _cell(
    about: Mapping[str, Any],
    runs: Sequence[Result],
    paper: float | None,
    lines: Mapping[tuple[Column, int], Result],
) -> Cell:
    metric, round_, reach = about.get("metric", "client_mean"), about.get("round", "last"), about.get("reach", 0.0)
    measured = [run for run in runs if run.error is None]
    failed, line = len(runs) - len(measured), _line(metric, measured, lines)
    if isinstance(round_, int):
        curves = [run.rounds.get(metric, ()) for run in measured]
        known = [100 * curve[round_ - 1] for curve in curves if len(curve) >= round_]
        return Cell(known, known, paper, metric, "last", failed, line)
    pairs = [(run, value) for run in measured if (value := MEASURES[metric].of(run, reach)) is not None]
    last = [value * (about["rounds"] / round_count(run) if "rounds" in about else 1) for run, value in pairs]
    best = [at_round(run, metric, best=True) for run in measured] if metric in METRICS else last
    known = [value for value in best if value is not None]
    return Cell(last, known, paper, metric, round_, failed, line)


def _line(metric: str, runs: Sequence[Result], lines: Mapping[tuple[Column, int], Result]) -> float | None:
    """Return the accuracy of the client's own most frequent class in the runs' settings, where it is known."""
    found = [lines[run.column, run.seed] for run in runs if (run.column, run.seed) in lines]
    values = [100 * run.accuracy[metric] for run in found if metric in run.accuracy]
    return fmean(values) if values and len(values) == len(runs) else None


def _caption(table: Mapping[str, Any], used: Sequence[Result]) -> str:
    """Return the caption: metrics, data, seeds and rounds of the records."""
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
        waits = " (in the queue: `make results-queue`)" if table.get("queued") else ""
        said.append(f"not run yet: `{table['command']}`{waits}" if "command" in table else "not run yet")
    rounds = {about.get("round", "last") for about in cells}
    if rounds & {"best", "both"}:
        said.append("last / best round" if "both" in rounds else "best round")
    if any("paper" in row for row in table["rows"]) and table.get("reach") != "paper":
        compared = "the paper's figure" + (", and ours minus the paper's" if table.get("compare", True) else "")
        said.append(f"in brackets {compared}")
    text = "; ".join(said)
    return f"*{text[0].upper()}{text[1:]}.*"


def tables(folder: Path) -> dict[str, str]:
    """Return every table that a folder of records describes, by name."""
    made: dict[str, str] = {}
    baselines = folder / BASELINES
    entries = tomllib.loads((ROOT / "tools" / "queue.toml").read_text(encoding="utf-8"))["entries"]
    queued = {entry["keep"] for entry in entries if "keep" in entry}
    for path in sorted(folder.glob("*.toml")):
        described = tomllib.loads(path.read_text(encoding="utf-8"))
        files = [folder / f"{name}.jsonl" for name in described.get("data", [path.stem])]
        there = [file for file in files if file.exists()]
        lines = [baselines] if baselines.exists() else []
        # File by file: two files may use the same label for different settings.
        runs = list({run.key: run for file in there for run in load_results([file, *lines]).runs}.values())
        for table in described["tables"]:
            if table["name"] in made:
                raise SystemExit(f"{path}: there is another table {table['name']!r}: give it another name")
            command = {"command": described["command"]} if "command" in described else {}
            waits = {"queued": bool({file.stem for file in files} & queued)}
            made[table["name"]] = build({**command, **waits, **table}, runs)
    return made


def filled(page: str, made: Mapping[str, str]) -> str:
    """Return a page with its tables filled in."""

    def fill(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if name not in made:
            raise SystemExit(f"a page asks for the table {name!r}, which no .toml in docs/results/data describes")
        return f"{start}\n{made[name]}\n{end}"

    return MARKER.sub(fill, page)


def out_of_date(data: Path = PAGES / "data", pages: Sequence[Path] | None = None) -> dict[Path, str]:
    """Return the new text of the pages that differ from the records; by default of README and docs."""
    made, asked, stale = tables(data), set(), {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if pages is None else pages:
        text = path.read_text(encoding="utf-8")
        asked |= {name for _, name, _ in MARKER.findall(text)}
        if (new := filled(text, made)) != text:
            stale[path] = new
    if unused := made.keys() - asked:
        raise SystemExit(f"no page shows the table {min(unused)!r}: put its marker there, or take the table away")
    return stale


def slim(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of runs, reduced to the fields that tables need; `fedgram report` still reads them.

    The figures of the clients' most frequent class belong to a setting, and become a run.
    """
    there = list(records)
    lines = [most_frequent_record(record, record["most_frequent"]) for record in there if "most_frequent" in record]
    return [_slim(record) for record in [*there, *lines] if record.get("kind", "run") == "run"]


def _slim(record: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: record[name] for name in (*KEPT, *SETTINGS) if record.get(name) is not None}
    if record.get("accuracy"):
        kept["accuracy"] = {name: round(value, 6) for name, value in record["accuracy"].items()}
    # Traffic becomes one number, the mean of the clients; rounds keep four digits of two accuracies.
    kept |= {way: [round(fmean(record[way]))] for way in ("up", "down") if record.get(way)}
    curves = {name: values for name, values in record.get("rounds", {}).items() if name != "worst_decile"}
    if curves:
        kept["rounds"] = {name: [round(value, 4) for value in values] for name, values in curves.items()}
    return kept


def keep(results: Path, folder: Path = PAGES / "data") -> Path:
    """Slim a comparison, and add its runs to those kept under the name of its folder."""
    path = results / "results.jsonl" if results.is_dir() else results
    target = folder / f"{path.parent.resolve().name if results.is_dir() else path.stem}.jsonl"
    add(slim(_whole(path)), target)
    return target


def add(records: Iterable[Mapping[str, Any]], target: Path) -> None:
    """Add slim records to a file; a reader sees the file without or with all of them.

    A known run keeps its place, and its newest record counts, but a failure does not replace a result.
    """
    there: list[Mapping[str, Any]] = [*_whole(target)] if target.exists() else []
    kept = {_identity(record): record for record in there}
    for record in records:
        before = kept.get(_identity(record))
        if before is None or _rank(record) >= _rank(before):
            kept[_identity(record)] = record
    text = "".join(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n" for record in kept.values())
    if not target.exists() or target.read_bytes() != text.encode():
        replace_file(target, text.encode(), mode=0o644)


def _identity(record: Mapping[str, Any]) -> tuple[str, str]:
    kind = record.get("kind", "run")
    return kind, record["key" if kind == "run" else "setting"]


def _rank(record: Mapping[str, Any]) -> tuple[bool, str]:
    return journal.went_well(record), record.get("finished", "")


def _whole(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file without damaged lines."""
    lines = list(journal.read(path))
    if damaged := [line for line in lines if isinstance(line, journal.Damage)]:
        raise SystemExit(f"{damaged[0]}: mend it by `fedgram compare --resume` first")
    return [line.record for line in lines if isinstance(line, journal.Line)]


def without_baseline(folder: Path = PAGES / "data") -> list[tuple[Column, int]]:
    """Return the settings and seeds of records whose clients are tested, but have no line "own most frequent class"."""
    runs = [run for path in sorted(folder.glob("*.jsonl")) for run in load_results([path]).runs]
    known = {(run.column, run.seed) for run in runs if run.method == MOST_FREQUENT}
    return sorted({(run.column, run.seed) for run in runs if not run.column.has_common_test} - known, key=str)


def add_baselines(folder: Path = PAGES / "data") -> int:
    """Compute the figures of the clients' most frequent class, where records lack them, and return their number.

    This needs labels but not features, so it takes seconds for all records.
    """
    lines = []
    for column, seed in without_baseline(folder):
        settings = {name: value for name, value in asdict(column).items() if value is not None} | {"seed": seed}
        prepared = Scenario(**settings).prepare(labels_only=True)
        found = recorded_evaluation(prepared.most_frequent(), prepared.names, {})
        lines.append(_slim(most_frequent_record(settings, found)))
    if lines:
        add(lines, folder / BASELINES)
    return len(lines)


def main(arguments: Sequence[str]) -> None:
    """Run the command of the command line."""
    match list(arguments):
        case ["keep", *folders] if folders:
            for folder in folders:
                path = keep(Path(folder))
                print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        case ["baselines"]:
            print(f"{BASELINES}: {add_baselines()} more settings")
        case []:
            for path, text in out_of_date().items():
                path.write_text(text, encoding="utf-8")
                print(f"{path.relative_to(ROOT)}: tables filled in")
        case ["--check"]:
            if stale := out_of_date():
                sys.exit(f"not what the records say: {', '.join(path.name for path in stale)}; run `make results`")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
