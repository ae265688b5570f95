"""Thousands of damaged and forged files: damaged files are refused by name, and no file causes a crash."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedgram.exchange.format import fgm
from fedgram.exchange.pages.passport import Passport, passport_page
from support import campaign
from support.exchange import keyed_study, refusal, summary, tables
from support.fgm import body_of, resealed, sealed
from support.mutations import OF_BYTES, changed_within

MUTATIONS = campaign.size(1000)  # 10,000 in a campaign
FORGERIES = campaign.size(200)  # of each kind
VALUES = (None, 0, -1, 2**70, 1e308, True, "", "x", "study", [], {}, [1, 2], {"array": "payload/gram"})
STORED = Path(__file__).parent / "stored"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutations")
    file = summary(keyed_study(), tables(folder)["north"])
    return fgm.encode(
        "summary",
        file.payload,
        study=file.study,
        party="north",
        samples=file.header.samples,
        columns=file.header.columns,
    )


def header_edited(data, rng):
    """Change the JSON header so that it stays JSON, and fits its length."""
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    target = entries if rng.random() < 0.3 else entries["__metadata__"]
    if rng.random() < 0.2:
        target = entries["payload/gram"]
    name = str(rng.choice(list(target)))
    values = [None, 0, -1, 2**63, 1.5, True, "", "x", "9" * 30, [], [0], [-1, 8], {}, {"dtype": "F64"}, "[" * 50]
    choice = rng.integers(4)
    if choice == 0:
        target.pop(name)
    elif choice == 1:
        target[name] = values[rng.integers(len(values))]
    elif choice == 2:
        target[f"{name}x"] = target.pop(name)
    elif isinstance(target[name], str) and target[name]:
        place = int(rng.integers(len(target[name])))
        target[name] = target[name][:place] + chr(int(rng.integers(32, 0x2FF))) + target[name][place + 1 :]
    else:
        target[name] = [target[name]]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.campaign
def test_mutated_files_are_refused_by_name(original):
    assert refusal(original) is None
    rng = np.random.default_rng(18)
    kinds = (*OF_BYTES, header_edited, header_edited)
    for number in range(MUTATIONS):
        change = kinds[number % len(kinds)]
        mutated = change(original, rng)
        if mutated != original:
            why = refusal(mutated)
            assert why is not None, f"{change.__name__}, number {number}, was accepted"
            assert len(why) < 1000


def unsigned(path):
    """Return a stored file without its signature, which a forgery would invalidate."""
    data = path.read_bytes()
    return resealed(data, signer="", signature="")


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["summary", "asked", "answered", "published", "personal"])
def test_forged_files_with_right_digests_are_refused_or_make_sense(kind):
    """Made-up content in an otherwise valid file: accepted files can be displayed."""
    rng = np.random.default_rng(19)
    original, accepted = unsigned(STORED / f"{kind}.fgm"), 0
    for _ in range(FORGERIES):
        metadata, shapes = fgm.parse(original)
        body = bytearray(body_of(original))
        if rng.random() < 0.2:
            place = int(rng.integers(len(body) // 8))
            body[8 * place : 8 * place + 8] = np.float64(rng.choice([0.0, -1.0, 1e300, 0.5, 1e-300])).tobytes()
        else:
            tree = json.loads(metadata["fedgram"])
            changed_within(tree, rng, VALUES)
            metadata["fedgram"] = json.dumps(tree, separators=(",", ":"))
        data = sealed(metadata, shapes, bytes(body))
        if refusal(data) is None:
            accepted += 1
            passport_page(Passport.of(fgm.read(data)))
    assert 0 < accepted < FORGERIES / 2
