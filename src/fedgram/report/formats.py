"""A table as Markdown, LaTeX, CSV or on the terminal."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from html import escape
from math import isnan, nan
from statistics import fmean

from rich.table import Table as RichTable
from rich.text import Text

from fedgram.core.escaping import guarded
from fedgram.core.escaping import latex as latex_text
from fedgram.core.terminal import visible
from fedgram.experiments.results import Column, Results
from fedgram.report.metrics import SPANS
from fedgram.report.paired_tests import Comparison
from fedgram.report.result_tables import BEST, SECOND, Cell, Entry, Table, cells, ranks, tested

_STYLES = {BEST: "bold", SECOND: "underline"}
_MARKDOWN = re.compile(r"([\\|*_`\[\]<>])")


def terminal(table: Table) -> RichTable:
    """Return a table for Rich to print."""
    drawn = RichTable(
        title=Text(visible(table.caption)), title_justify="left", title_style="italic", box=None, pad_edge=False
    )
    drawn.add_column("", no_wrap=True)
    groups = [text for text, width in table.spans for _ in range(width)]
    for group, head in zip(groups, table.heads, strict=True):
        above = f"{visible(group)}\n" if any(groups) else ""
        drawn.add_column(Text(f"{above}{visible(head)}"), justify="right", no_wrap=True)
    for name, *entries in table.rows:
        drawn.add_row(
            Text(visible(name.text)), *(Text(entry.text, style=_STYLES.get(entry.rank, "")) for entry in entries)
        )
    return drawn


def markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown."""
    heads = table.full_heads
    lines = [
        _line(["", *map(_markdown_escape, heads)]),
        _line(["---", *["---:"] * len(heads)]),
        *(_line([_markdown_entry(entry) for entry in row]) for row in table.rows),
    ]
    return f"{_markdown_escape(table.caption)}\n\n" + "\n".join(lines) + "\n"


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _markdown_escape(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", visible(" ".join(text.split())))


def _markdown_entry(entry: Entry) -> str:
    text = _markdown_escape(entry.text)
    return {BEST: f"**{text}**", SECOND: f"<ins>{text}</ins>"}.get(entry.rank, text)


def latex(table: Table, width: str | None = None) -> str:
    r"""Return a table for a paper, with a caption and a label; it needs the package booktabs.

    With `width` "column" or "text" it fits a column or, in `table*`, the whole text: one that is too wide is made
    smaller, by the package adjustbox.
    """
    heads = " & ".join(["", *map(latex_text, table.heads)])
    spans, rules, at = [""], [], 2
    for text, across in table.spans:
        spans.append(rf"\multicolumn{{{across}}}{{c}}{{{latex_text(text)}}}")
        if text:
            rules.append(rf"\cmidrule(lr){{{at}-{at + across - 1}}}")
        at += across
    environment = "table*" if width == "text" else "table"
    lines = [
        rf"\begin{{{environment}}}",
        r"  \centering",
        rf"  \caption{{{latex_text(table.caption)}}}",
        *([rf"  \label{{tab:{table.name}}}"] if table.name else []),
        *([] if width is None else [r"  \begin{adjustbox}{max width=\linewidth}"]),
        rf"  \begin{{tabular}}{{l{'r' * len(table.heads)}}}",
        r"    \toprule",
        *([rf"    {' & '.join(spans)} \\", f"    {' '.join(rules)}"] if rules else []),
        rf"    {heads} \\",
        r"    \midrule",
        *(rf"    {_latex_row(row)} \\" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *([] if width is None else [r"  \end{adjustbox}"]),
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(row: Sequence[Entry]) -> str:
    text = " & ".join(map(_latex_entry, row))
    # After the end of a row, these would be taken for its arguments.
    return "{}" + text if text.startswith(("[", "*")) else text


def _latex_entry(entry: Entry) -> str:
    text = latex_text(entry.text)
    return {BEST: rf"\textbf{{{text}}}", SECOND: rf"\underline{{{text}}}"}.get(entry.rank, text)


def comma_separated(results: Results, metric: str) -> str:
    """Return one line per method and column, for other programs: accuracies in percent, other figures as they are."""
    found = cells(results, metric)
    rank, tests = ranks(results, found), tested(results, metric)
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    costs: dict[str, Callable[..., float | None]] = {
        "bytes_up": lambda run: sum(run.up) if run.up else None,
        "bytes_down": lambda run: sum(run.down) if run.down else None,
        "cpu_clients": lambda run: run.cpu_seconds.get("clients"),
        "cpu_server": lambda run: run.cpu_seconds.get("server"),
        "peak_memory": lambda run: run.peak_memory,
        **{f"{span}_seconds": lambda run, span=span: run.timing.get(span) for span in SPANS},
    }
    settings = [field.name for field in fields(Column)]
    paired = ["pairs", "difference", "p_wilcoxon", "p_t"]  # against the best of the setting
    write.writerow(
        ["method", "reference", *settings, "metric", "mean", "sd", "seeds", "failed", "rank", *paired, *costs]
    )
    for label in results.labels:
        for column in results.columns:
            cell = found.get((label, column))
            if cell is None:
                continue
            runs = [run for run in results.finished if run.label == label and run.column == column]
            known = {name: [value for run in runs if (value := cost(run)) is not None] for name, cost in costs.items()}
            reference = any(run.reference for run in results.runs if run.label == label)
            write.writerow(
                [guarded(visible(label, lines=True)), str(reference).lower()]
                + [
                    guarded(visible(value, lines=True)) if isinstance(value, str) else value
                    for value in astuple(column)
                ]
                + [metric, *(_digits(value, cell) for value in (fmean(cell.values or [nan]), cell.deviation))]
                + [len(cell.values), cell.failed, rank.get((label, column), "")]
                + _test(tests.get((label, column)))
                + [f"{fmean(values):.12g}" if values else "" for values in known.values()]
            )
    return out.getvalue()


def _test(one: Comparison | None) -> list[str | int]:
    if one is None:
        return [""] * 4
    return [one.pairs, f"{one.difference:.8g}", *("" if p is None else f"{p:.6g}" for p in (one.wilcoxon, one.t))]


def _digits(value: float | None, cell: Cell) -> str:
    if value is None or isnan(value):
        return ""
    return f"{value:.4f}" if cell.metric.is_accuracy else f"{value:.8g}"


def html(table: Table) -> str:
    """Return a plain HTML table, for readers without JavaScript."""
    heads = table.full_heads
    head = "".join(f"<th>{escape(text)}</th>" for text in ["", *heads])
    body = "".join(f"<tr>{''.join(map(_html_entry, row))}</tr>" for row in table.rows)
    return (
        f"<table><caption>{escape(table.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _html_entry(entry: Entry) -> str:
    text = escape(entry.text)
    return f"<td>{ {BEST: f'<b>{text}</b>', SECOND: f'<u>{text}</u>'}.get(entry.rank, text) }</td>"
