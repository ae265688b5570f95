"""`fedgram combine`: a region's sum as one file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.output_files import Force, write_file
from fedgram.cli.store_options import Json, StoreFolder, check_outside, existing
from fedgram.core import terminal
from fedgram.core.progress_bars import spinner
from fedgram.core.terminal import human_size, one_line
from fedgram.exchange.format import fgm
from fedgram.exchange.store.combined import leaves_of


def combine(
    store: StoreFolder,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("region.fgm"),
    name: Annotated[str | None, typer.Option(help="The region's name. Default: the store's folder.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the sum of all contributions of a store as one file, which joins another store.

    It holds the sum, not rounded, and the digests of the summaries in it, so that none is counted twice. Sums of sums
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
    combined = fgm.read(data, checked=True)
    summaries, samples = len(leaves_of(combined)), combined.header.samples
    found = {"party": region, "summaries": summaries, "samples": samples, "bytes": len(data), "file": str(out)}
    if as_json:
        typer.echo(json.dumps(found))
        return
    said = f"{region}: {summaries:,} summaries, {samples:,} samples, {human_size(len(data))}; wrote {out}"
    terminal.console(soft_wrap=True, highlight=False).print(one_line(said))
