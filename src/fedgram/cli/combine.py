"""`fedgram combine`: a region's sum as one file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.outputs import Force, write_file
from fedgram.cli.stores import Json, StoreFolder, check_outside, existing, size
from fedgram.core import terminal
from fedgram.core.progress import spinner
from fedgram.core.terminal import one_line
from fedgram.exchange import files
from fedgram.exchange.combined import leaves_of


def combine(
    store: StoreFolder,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("region.fgm"),
    name: Annotated[str | None, typer.Option(help="What the region is called. Default: the store's folder.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write all contributions of a store as one summary of summaries, for another store to join.

    It holds their sum, not rounded, and the digests of what is in it, so that nothing is counted twice. Sums of sums
    are the same to the bit as if all parties had joined directly.

    Examples:
      fedgram combine region-north/ --out region-north.fgm

      fedgram join store/ region-north.fgm region-south.fgm

    """
    kept = existing(store)
    check_outside("--out", out, store)
    region = name or store.resolve().name
    with spinner("adding up"):  # after a crash, files are read again
        data = kept.combine(region)
    write_file(out, data, force=force)
    combined = files.read(data, checked=True)
    summaries, samples = len(leaves_of(combined)), combined.header.samples
    found = {"party": region, "summaries": summaries, "samples": samples, "bytes": len(data), "file": str(out)}
    if as_json:
        typer.echo(json.dumps(found))
        return
    said = f"{region}: {summaries:,} summaries, {samples:,} samples, {size(len(data))}; wrote {out}"
    terminal.console(soft_wrap=True, highlight=False).print(one_line(said))
