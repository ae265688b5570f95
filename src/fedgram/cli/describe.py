"""`fedgram describe`: the table of descriptives of a store ("Table 1")."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from math import floor, isnan, log10
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgram.cli.output_files import Force, check_free
from fedgram.cli.report import print_tables
from fedgram.cli.store_options import Json, StoreFolder, check_outside, existing
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.escaping import guarded
from fedgram.core.filesystem import replace_file, writing
from fedgram.core.progress_bars import spinner
from fedgram.core.terminal import one_line, visible
from fedgram.exchange.store.describing import describe as describe_store
from fedgram.report import formats
from fedgram.report.result_tables import NOTHING, Entry, Table
from fedgram.studies.table_one import Correlations, Figures, Site, TableOne, Variable

MOST_SITES = 8  # that are shown where they are not asked for
ACROSS = 4  # sites beside each other on a narrow terminal
ALL, LARGEST = "all", "largest difference"
WITHHELD = "withheld"
MOST_DECIMALS, MOST_DIGITS = 8, 1e12  # beyond which a number is written with an exponent


def describe(
    store: StoreFolder,
    correlations: Annotated[
        bool, typer.Option("--correlations", help="Print the pooled correlations of numbers and flags instead.")
    ] = False,
    sites: Annotated[
        bool | None,
        typer.Option("--sites/--no-sites", help=f"A column for each site. Default: text and LaTeX up to {MOST_SITES}."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV: a line for each column, level and site.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print a LaTeX table, for the package booktabs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Describe the columns of a study by site and pooled, from the contributions of a store: "Table 1".

    Means and standard deviations in the study's units, shares of flags, categories and classes, missing cells, and
    standardised differences between sites. Parties are not asked. A figure that rests on fewer samples than the study's
    minimum_group is withheld.

    Examples:
      fedgram describe store/

      fedgram describe store/ --latex --out table-1.tex

      fedgram describe store/ --correlations

    """
    if sum((as_csv, as_latex, as_json)) > 1:
        raise InvalidParameter("--csv, --latex, --json: expected one form of output, got several; leave out the others")
    if out is not None:
        check_outside("--out", out, store)
        check_free("--out", out, force=force)
    kept = existing(store)
    with spinner("reading contributions"):
        found = describe_store(kept)
    if as_json:
        text = json.dumps(found.correlations.fields() if correlations else found.fields(), allow_nan=False) + "\n"
    elif as_csv:
        text = _correlation_lines(found.correlations) if correlations else _lines(found, sites is not False)
    else:
        table, notes = _correlation_table(found) if correlations else _table(found, sites)
        if out is None and not as_latex:
            _show(table, notes)
            return
        text = _latex(table, notes) if as_latex else _plain(table, notes)
    if out is None:
        terminal.echo(text, end="")
        return
    with writing(out):
        replace_file(out, text.encode())
    terminal.console(soft_wrap=True, highlight=False).print(one_line(f"wrote {out}"))


def show(found: TableOne) -> None:
    """Print descriptives as `fedgram describe` does."""
    _show(*_table(found, None))


def _show(table: Table, notes: Sequence[str]) -> None:
    print_tables([table])
    below = terminal.console(soft_wrap=True, highlight=False)
    for note in notes:
        below.print(one_line(note))


def _latex(table: Table, notes: Sequence[str]) -> str:
    return "".join(f"% {visible(note)}\n" for note in notes) + formats.latex(table)


def _plain(table: Table, notes: Sequence[str]) -> str:
    text = io.StringIO()
    terminal.console(file=text, width=10_000, highlight=False).print(formats.terminal(table))
    return text.getvalue() + "".join(f"{visible(note)}\n" for note in notes)


def _table(found: TableOne, sites: bool | None) -> tuple[Table, Sequence[str]]:
    """Return the table with a row for each variable and level, and the notes below it."""
    shown = found.sites if sites or (sites is None and len(found.sites) <= MOST_SITES) else ()
    several, notes = len(found.sites) > 1, list(found.notes)
    if len(shown) < len(found.sites) and sites is None:
        notes.append(f"{len(found.sites):,} sites are not shown: --sites shows them, --csv has all figures")
    heads = [ALL, *([LARGEST] if several else ()), *(_heading(site) for site in shown)]
    rows = [["samples", f"{found.samples:,}", *([""] if several else ()), *(f"{site.samples:,}" for site in shown)]]
    for variable in found.variables:
        difference = [_largest(variable, found.sites)] if several else []
        rows += _rows(variable, variable.sites[: len(shown)], difference)
    spans = [("", 1 + several), *(("", len(shown[at : at + ACROSS])) for at in range(0, len(shown), ACROSS))]
    entries = [[Entry(text) for text in row] for row in rows]
    return Table(_caption(found), spans, heads, entries, "descriptives"), notes


def _caption(found: TableOne) -> str:
    parties = sum(site.summaries for site in found.sites)
    return f"Study {found.study.name}: {found.samples:,} samples of {parties:,} part{'ies' if parties != 1 else 'y'}"


def _heading(site: Site) -> str:
    return site.name if site.summaries == 1 else f"{site.name} ({site.summaries:,} parties)"


def _rows(variable: Variable, sites: Sequence[Figures | None], difference: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of a variable: one of a number, one for each level of others, and one of missing cells."""
    named = f"{variable.name} ({variable.unit})" if variable.unit else variable.name
    figures, rest = (variable.pooled, *sites), [""] * len(difference)
    if not variable.levels:
        yield _row(named, [_mean(each) for each in figures], difference)
    for place, level in enumerate(variable.levels):
        yield _row(f"{named}: {level}", [_count(each, place) for each in figures], difference if not place else rest)
    if variable.may_lack:
        yield _row(f"{variable.name}: missing", [_missing(each) for each in figures], rest)


def _row(name: str, figures: Sequence[str], difference: Sequence[str]) -> list[str]:
    return [name, figures[0], *difference, *figures[1:]]


def _mean(found: Figures | None) -> str:
    """Return mean and standard deviation with as many decimals as give the deviation three digits."""
    if found is None:
        return WITHHELD
    if found.mean is None:
        return NOTHING
    if not found.deviation:
        return f"{found.mean:.6g} ({NOTHING if found.deviation is None else 0})"
    decimals = max(2 - floor(log10(found.deviation)), 0)
    if decimals > MOST_DECIMALS or abs(found.mean) > MOST_DIGITS:
        return f"{found.mean:.6g} ({found.deviation:.3g})"
    return f"{found.mean:,.{decimals}f} ({found.deviation:,.{decimals}f})"


def _count(found: Figures | None, place: int) -> str:
    if found is None:
        return WITHHELD
    share = found.shares[place]
    return f"{found.counts[place]:,}" + ("" if share is None else f" ({share:.1%})")


def _missing(found: Figures | None) -> str:
    if found is None:
        return WITHHELD
    n = found.known + found.missing
    return f"{found.missing:,}" + (f" ({found.missing / n:.1%})" if n else "")


def _largest(variable: Variable, sites: Sequence[Site]) -> str:
    """Return the largest standardised difference of a site from the others, with the site's name."""
    known = [(abs(each), site.name) for each, site in zip(variable.differences, sites, strict=True) if each is not None]
    if not known:
        return NOTHING
    size, name = max(known, key=lambda pair: pair[0])
    return f"{size:.3f}" if len(sites) == 2 else f"{size:.3f} {name}"


def _lines(found: TableOne, sites: bool) -> str:
    """Return CSV with a line for each variable, level and site; the site is empty for all samples together."""
    names = "column,kind,unit,level,site,samples,known,missing,count,share,mean,deviation,difference,withheld"
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(names.split(","))
    whole = Site("", found.samples)
    for variable in found.variables:
        by_site: list[tuple[Site, Figures | None, float | None]] = [(whole, variable.pooled, None)]
        if sites:
            by_site += zip(found.sites, variable.sites, variable.differences, strict=True)
        for place, level in enumerate(variable.levels or ("",)):
            for site, figures, difference in by_site:
                about = [variable.name, variable.kind, variable.unit, level, site.name]
                cells = [site.samples, *_cells(figures, place), "" if difference is None else difference]
                texts = (guarded(visible(text, lines=True)) for text in about)
                write.writerow([*texts, *cells, "yes" if figures is None else ""])
    return out.getvalue()


def _cells(found: Figures | None, place: int) -> list[Any]:
    if found is None:
        return [""] * 6
    counts = [found.counts[place], found.shares[place]] if found.counts else [None, None]
    return ["" if each is None else each for each in (found.known, found.missing, *counts, found.mean, found.deviation)]


def _correlation_table(found: TableOne) -> tuple[Table, Sequence[str]]:
    """Return the lower triangle of the correlations, and the notes on them."""
    known = found.correlations
    rows = [
        [Entry(name), *(Entry(NOTHING if isnan(value) else f"{value:.3f}") for value in values[:place])]
        + [Entry("")] * (len(known.names) - 1 - place)
        for place, (name, values) in enumerate(zip(known.names, known.values.tolist(), strict=True))
        if place
    ]
    heads = known.names[:-1]
    return Table(f"{_caption(found)}; correlations", [("", 1)] * len(heads), heads, rows, "correlations"), known.notes


def _correlation_lines(found: Correlations) -> str:
    """Return CSV with a line for each pair of columns."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(["column", "other", "correlation", "samples"])
    names = [guarded(visible(name, lines=True)) for name in found.names]
    for place, (values, samples) in enumerate(zip(found.values.tolist(), found.samples.tolist(), strict=True)):
        for other in range(place):
            value = "" if isnan(values[other]) else values[other]
            write.writerow([names[place], names[other], value, samples[other] or ""])
    return out.getvalue()
