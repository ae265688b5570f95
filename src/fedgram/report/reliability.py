"""How often models are right when they are as sure as they say: a point for each range of confidence."""

from collections import defaultdict
from collections.abc import Iterator

from fedgram.experiments.results import Column, Results
from fedgram.report.charts import Axis, Chart, Index, Panel, Series


def reliability(results: Results, index: Index) -> Iterator[Chart]:
    """Describe confidence against accuracy over all test samples, one panel for each setting."""
    panels: dict[Column, list[Series]] = defaultdict(list)
    for (label, column), run in index.chosen(results).items():
        known = run.judged.reliability
        if known is None or not known.n:
            continue
        rows = zip(known.samples, known.right, known.confidence, strict=True)
        points = [(100 * sure / n, 100 * right / n, n) for n, right, sure in rows if n]
        x, y, n = zip(*points, strict=True)
        told = f"{label}: calibration error {known.error:.4f}"
        place, look = index.column[column], index.look[label]
        panels[column].append(
            Series(
                label,
                look,
                "marks",
                [round(value, 2) for value in x],
                [round(value, 2) for value in y],
                index.method[label],
                [place] * len(x),
                facts={"samples": n},
                told=told,
            )
        )
    if panels:
        yield Chart(
            "reliability",
            "reliability",
            "Reliability of probabilities",
            Axis("confidence in %", "percent"),
            Axis("accuracy in %", "percent"),
            [Panel(index.heading[column], index.column[column], series=panels[column]) for column in panels],
            "A mark is a range of confidence, the larger the more samples are in it. On the dashed line a model is "
            "right as often as it says; below it is too sure, above it could be surer.",
        )
