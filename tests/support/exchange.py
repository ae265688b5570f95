"""A small study with the tables of three parties, and their files."""

import numpy as np

from fedgram.core.errors import FedgramError
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.party_side import Party, summarize
from fedgram.secure.signing_keys import PrivateKey, _ed25519, _x25519
from fedgram.studies import Study

PARTIES = ("north", "south", "east")
TEXT = """
[study]
name = "walks"
outcome = "diagnosis"
classes = ["ill", "well"]
parties = ["north", "south", "east"]
minimum_samples = 10
minimum_cell = 3

[columns.age]
kind = "number"
unit = "years"
range = [0, 120]
[columns.steps]
kind = "number"
range = [0, 40000]
missing = "mean"
[columns.sex]
kind = "category"
values = ["F", "M"]
missing = "category"
[columns.smoker]
kind = "flag"
missing = "flag"
[columns.patient]
kind = "ignore"
"""


def table(seed, rows=60, *, ill=0.5):
    """Return a party's table as CSV."""
    rng = np.random.default_rng(seed)
    lines = ["patient,age,steps,sex,smoker,diagnosis"]
    for row in range(rows):
        sick = rng.random() < ill
        steps = "" if rng.random() < 0.2 else str(int(np.clip(9000 - 5000 * sick + rng.normal(0, 1500), 0, 40000)))
        sex = rng.choice(["F", "M", ""], p=[0.45, 0.45, 0.1])
        smoker = rng.choice(["yes", "no", ""], p=[0.3, 0.6, 0.1])
        lines.append(f"P{seed}-{row},{rng.integers(20, 90)},{steps},{sex},{smoker},{'ill' if sick else 'well'}")
    return "\n".join(lines) + "\n"


def tables(folder, *, rows=60):
    """Write the tables of all parties, and return their paths by party."""
    paths = {name: folder / f"{name}.csv" for name in PARTIES}
    for seed, path in enumerate(paths.values()):
        path.write_text(table(seed, rows))
    return paths


def key_of(number):
    """Return a private key that is the same in every run."""
    halves = _ed25519().Ed25519PrivateKey, _x25519().X25519PrivateKey
    return PrivateKey(*(half.from_private_bytes(bytes([number]) * 32) for half in halves))


def keyed_study():
    """Return the study with the keys of its parties."""
    lines = "".join(f'{name} = "{key_of(number).public}"\n' for number, name in enumerate(PARTIES))
    return Study.parse(TEXT.replace('parties = ["north", "south", "east"]\n', "") + "[parties]\n" + lines)


def summary(study, path, number=0):
    """Return a party's summary, signed."""
    return fgm.read(summarize(study, path, Party(PARTIES[number], key_of(number))))


def refusal(data):
    """Return the reason why bytes are refused; all other errors are errors of ours."""
    try:
        fgm.read(data)
    except FedgramError as error:
        assert str(error).startswith(("bytes refused", "message from 'bytes' refused")), error
        return str(error)
    return None
