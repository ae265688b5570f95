"""Handwritten digits as the tables of five parties, one column for each pixel, and the study for them.

    python examples/digits_tables.py [folder]

The 1,797 images are real (Alpaydin and Kaynak, 1998) and come with fedgram. A Dirichlet distribution
spreads them over the parties, so each party has mostly some of the digits.
"""

import csv
import sys
from pathlib import Path

import fedgram as fg
from fedgram.data import digits

PARTIES = ("north", "south", "east", "west", "centre")


def main(folder: Path) -> None:
    data = digits()
    pixels = [f"pixel_{number:02d}" for number in range(data.x.shape[1])]
    parts = fg.partition.dirichlet(data.y, clients=len(PARTIES), alpha=1.0, seed=0)
    for name, part in zip(PARTIES, parts, strict=True):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*pixels, "digit"])
            table.writerows([*(f"{value:g}" for value in data.x[row]), f"digit {data.y[row]}"] for row in part)
    names = ", ".join(f'"digit {number}"' for number in range(10))
    listed = ", ".join(f'"{name}"' for name in PARTIES)
    lines = ["[study]", 'name = "digits"', 'outcome = "digit"', f"classes = [{names}]", f"parties = [{listed}]"]
    lines += ["minimum_samples = 10", "minimum_cell = 1"]
    lines += [f'[columns.{pixel}]\nkind = "number"\nrange = [0, 1]' for pixel in pixels]
    (folder / "study.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
