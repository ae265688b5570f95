"""`fedgram publish`: the global model of all who have joined."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedgram.cli.options import split_settings
from fedgram.cli.outputs import Force, write_file
from fedgram.cli.stores import Json, StoreFolder, Wait, check_outside, existing
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.progress import counted, spinner
from fedgram.core.terminal import one_line
from fedgram.exchange.asking import Asked, advance
from fedgram.exchange.publishing import configured
from fedgram.exchange.rounds import STEPS
from fedgram.exchange.running import unmoved
from fedgram.exchange.sites import validate
from fedgram.exchange.store import Store
from fedgram.moments.validation import MOST_SITES, SiteValidation
from fedgram.protocol.parameters import read_settings


def publish(
    store: StoreFolder,
    method: Annotated[
        str | None, typer.Option(help="afl, fedhip, fedgram, apfl or fedlogit. Default: the study's.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write. Default: global.fgm, or round-1.fgm and so on.")
    ] = None,
    sites: Annotated[
        bool | None,
        typer.Option(
            "--sites/--no-sites", help=f"Predict each party by the others' model. Default: up to {MOST_SITES} parties."
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="apfl, fedlogit: discard all answers, and begin with round 1 again.")
    ] = False,
    force: Force = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Write the global model of all contributions; nobody is asked again, and no contribution is read again.

    apfl and fedlogit do ask again: this writes round-1.fgm for all parties to answer. When all answers have joined, it
    writes the model of apfl; fedlogit goes on with round-2.fgm, and ends with the model.

    Examples:
      fedgram publish store/ --method fedgram --out global.fgm

      fedgram publish store/ --method fedlogit --set rounds=5

    """
    kept = existing(store, wait=wait)
    if out is not None:
        check_outside("--out", out, store)
    chosen = configured(kept, method)
    given = read_settings(type(chosen), split_settings(settings or []))
    if chosen.name in STEPS:
        with spinner(f"computing {chosen.name}"):
            found = advance(kept, chosen.name, given, restart=restart)
        if isinstance(found, Asked):
            path = out or Path(f"round-{found.number}.fgm")
            write_file(path, found.data, force=force or restart)
            _wrote_round(found, path, as_json=as_json)
            return
    elif restart:
        raise InvalidParameter(f"--restart is for methods of rounds, and {chosen.name} has none: leave it out")
    else:
        with spinner(f"computing {chosen.name}"):
            found = kept.publish(chosen.name, **given)
    path, about = out or Path("global.fgm"), found.entry.says
    write_file(path, found.data, force=force)  # if this is refused, nothing is lost: the store keeps the publication
    errors = validated(kept, wanted=sites)
    head = found.entry.hash
    told: dict[str, Any] = {name: about[name] for name in ("version", "method", "samples", "digest", "total")}
    if as_json:
        scores = {party: {"left_out": site.left_out.brier, "own": site.own.brier} for party, site in errors.items()}
        typer.echo(json.dumps({**told, "file": str(path), "head": head, "sites": scores}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    parties = len(kept.index.leaves())
    said = f"version {told['version']}: {told['method']} of {parties:,} parties, {told['samples']:,} samples"
    console.print(one_line(f"{said}; wrote {path}"))
    console.print(f"ledger's head {head}")
    if errors:
        console.print(site_table(errors))


def site_table(errors: dict[str, SiteValidation]) -> Table:
    """Return a table of how well each party is predicted."""
    table = Table("party", "samples", "by the others", "by all", "by its own", box=None, header_style="bold")
    table.title, table.title_justify = "mean squared error of least squares on each party's samples", "left"
    for party, site in errors.items():
        figures = (f"{found.brier:.3f}" for found in (site.left_out, site.pooled, site.own))
        table.add_row(one_line(party), f"{site.left_out.n:,}", *figures)
    return table


def validated(store: Store, *, wanted: bool | None) -> dict[str, SiteValidation]:
    """Return how well each party is predicted by the others; nothing where there are too many, or too few."""
    count = len(store.contributions())
    if wanted is False or count < 2 or (wanted is None and count > MOST_SITES):
        return {}
    return unmoved(store, lambda: dict(counted(validate(store), "leaving one out", count)))


def _wrote_round(asked: Asked, path: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"round": asked.number, "file": str(path)}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    console.print(one_line(f"wrote {path}: send it to all parties, who answer with"))
    console.print(one_line(f"  fedgram summarize study.toml table.csv --key party.key --round {path.name}"))
    console.print("join their answers, and publish again")
