"""What in a party's table does not fit the study, told to that party alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgram.core.progress import with_bar
from fedgram.studies.encoding import open_for
from fedgram.studies.kinds import unknown
from fedgram.studies.study import Study

SHOWN = 5  # lines of each rule


@dataclass
class Findings:
    """What was found in a table: rows, samples by class, and the lines that break each rule."""

    rows: int = 0
    good: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    broken: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether every row can be used."""
        return not self.broken

    def lines(self) -> Iterator[str]:
        """Yield what is wrong, a line for each rule."""
        for rule, examples in self.broken.items():
            more = self.counts[rule] - len(examples)
            yield f"{rule}: {'; '.join(examples)}" + (f"; and {more} more" if more > 0 else "")


def check_table(study: Study, source: Any, *, group: str | None = None) -> Findings:
    """Return what does not fit, with line numbers; a column that is missing or unknown is refused at once."""
    table = open_for(study, source, group=group)
    found = Findings(classes=dict.fromkeys(map(str, study.classes), 0))
    places = {name: place for place, name in enumerate(study.sent)}
    may_lack = [unknown(name) for name, column in study.used.items() if unknown(name) in column.sent(name)]
    examples: dict[str, dict[int, str]] = {}  # of each rule, what is said of a row
    for rows in with_bar(table.rows(), f"reading {table.table.title}"):
        good = rows.good
        found.rows += len(good)
        found.good += int(good.sum())
        if rows.labels is not None:
            for label, count in rows.labels.rows(good).counts().items():
                found.classes[label] += count
        for name in may_lack:
            found.missing[name] = found.missing.get(name, 0) + int(rows.x[good, places[name]].sum())
        for problem in rows.problems:
            shown = examples.setdefault(problem.rule, {})
            for row in np.flatnonzero(problem.cells)[: SHOWN - len(shown)].tolist():
                shown[rows.start + row] = problem.of(row).removeprefix(problem.rule).lstrip(", ")
            found.counts[problem.rule] = found.counts.get(problem.rule, 0) + int(problem.cells.sum())
    where = table.table.find({place for shown in examples.values() for place in shown})
    for rule, shown in examples.items():
        found.broken[rule] = [f"{where[row][0]} ({told})" if told else where[row][0] for row, told in shown.items()]
    return found
