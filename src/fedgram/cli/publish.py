"""`fedgram publish`: the global model of all who have joined."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedgram.cli.options import split_settings
from fedgram.cli.output_files import Force
from fedgram.cli.store_options import Json, StoreFolder, Wait, check_outside, existing
from fedgram.core import terminal
from fedgram.core.errors import InvalidParameter
from fedgram.core.progress_bars import counted, spinner
from fedgram.core.terminal import one_line
from fedgram.exchange.pages.store_status import figure, how_well, site_errors
from fedgram.exchange.rounds.round_server import Asked, advance
from fedgram.exchange.store.publishing import configured, validate
from fedgram.exchange.store.saved_total import unmoved
from fedgram.exchange.store.study_store import Store
from fedgram.protocol.byfiles import file_step
from fedgram.protocol.parameters import read_settings
from fedgram.protocol.sites import MOST_SITES, SiteValidation


def publish(
    store: StoreFolder,
    method: Annotated[
        str | None,
        typer.Option(help="afl, fedhip, fedgram, apfl, fedlogit, logistic or poisson. Default: the study's."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter; may be repeated.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write, or a folder for global.fgm, or round-1.fgm and so on.", show_default="this folder"
        ),
    ] = Path(),
    sites: Annotated[
        bool | None,
        typer.Option(
            "--sites/--no-sites", help=f"Predict each party by the others' model. Default: up to {MOST_SITES} parties."
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Methods of rounds: discard all answers, and begin with round 1 again.")
    ] = False,
    force: Force = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Write the global model of all contributions, without asking parties again.

    Only apfl, fedlogit, logistic and poisson ask again: this writes round-1.fgm for all parties to answer. When all
    answers have joined, it writes the model of apfl; the others go on with round-2.fgm, and end with the model.
    fedgram coefficients prints the table of a logistic or Poisson regression.

    Where the file cannot be written, nothing is published, and the ledger has no entry of it. After a kill the next
    command finishes or undoes both.

    Examples:
      fedgram publish store/ --method fedgram --out global.fgm

      fedgram publish store/ --method fedlogit --set rounds=5

      fedgram publish store/ --method logistic --set event=ill --set columns=age,sex

    """
    kept = existing(store, wait=wait)
    check_outside("--out", out, store)
    chosen = configured(kept, method)
    given = read_settings(type(chosen), split_settings(settings or []))
    if file_step(type(chosen)) is not None:
        with spinner(f"computing {chosen.name}"):
            found = advance(kept, chosen.name, given, restart=restart, out=out, force=force)
        if isinstance(found, Asked):
            _wrote_round(found, as_json=as_json)
            return
    elif restart:
        raise InvalidParameter(f"--restart is for methods of rounds, and {chosen.name} has none: leave it out")
    else:
        with spinner(f"computing {chosen.name}"):
            found = kept.publish(chosen.name, out=out, force=force, **given)
    path, about = found.path, found.entry.says
    errors = validated(kept, wanted=sites)
    head = found.entry.hash
    told: dict[str, Any] = {name: about[name] for name in ("version", "method", "samples", "digest", "total")}
    if as_json:
        study = kept.terms.study
        scores = {
            party: {"left_out": site_errors(site.left_out, study), "own": site_errors(site.own, study)}
            for party, site in errors.items()
        }
        typer.echo(json.dumps({**told, "file": str(path), "head": head, "sites": scores}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    parties = len(kept.index.leaves())
    said = f"version {told['version']}: {told['method']} of {parties:,} parties, {told['samples']:,} samples"
    console.print(one_line(f"{said}; wrote {path}"))
    console.print(f"ledger's head {head}")
    for table in site_tables(kept, errors):
        console.print(table)


def site_tables(store: Store, errors: dict[str, SiteValidation]) -> Iterator[Table]:
    """Yield a table of the errors for each party: one, or one for each numeric outcome."""
    study = store.terms.study
    found = {
        party: [site_errors(error, study) for error in (site.left_out, site.pooled, site.own)]
        for party, site in errors.items()
    }
    for what in next(iter(found.values()), [{}])[0]:
        table = Table("party", "samples", "by the others", "by all", "by its own", box=None, header_style="bold")
        table.title, table.title_justify = one_line(how_well(what)), "left"
        for party, models in found.items():
            samples = f"{errors[party].left_out.n:,}"
            table.add_row(one_line(party), samples, *(figure(model[what]) for model in models))
        yield table


def validated(store: Store, *, wanted: bool | None) -> dict[str, SiteValidation]:
    """Return the errors at each party of the others' model, by party; none for too many or too few parties."""
    count = len(store.contributions())
    if wanted is False or count < 2 or (wanted is None and count > MOST_SITES):
        return {}
    return unmoved(store, lambda: dict(counted(validate(store), "leaving one out", count)))


def _wrote_round(asked: Asked, *, as_json: bool) -> None:
    path = asked.path
    assert path is not None
    if as_json:
        typer.echo(json.dumps({"round": asked.number, "file": str(path)}))
        return
    console = terminal.console(soft_wrap=True, highlight=False)
    console.print(one_line(f"wrote {path}: send it to all parties, who answer with"))
    console.print(one_line(f"  fedgram summarize study.toml table.csv --key party.key --round {path.name}"))
    console.print("join their answers, and publish again")
