"""Thousands of damaged and forged files: each is refused by name, none is accepted, none makes us fall over."""

import json

import numpy as np
import pytest

from fedgram.exchange import files
from support import campaign
from support.exchange import keyed_study, refusal, summary, tables

MUTATIONS = campaign.size(1000)  # 10,000 in a campaign


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutations")
    file = summary(keyed_study(), tables(folder)["north"])
    return files.encode(
        "summary",
        file.payload,
        study=file.study,
        party="north",
        samples=file.header.samples,
        columns=file.header.columns,
    )


def flipped(data, rng):
    """Change some bytes."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 9)):
        changed[rng.integers(len(data))] ^= int(rng.integers(1, 256))
    return bytes(changed)


def truncated(data, rng):
    return data[: rng.integers(len(data))]


def lengthened(data, rng):
    return data + rng.bytes(int(rng.integers(1, 64)))


def spliced(data, rng):
    """Copy a piece over another place, or take one out."""
    start, end = sorted(rng.integers(0, len(data), 2))
    place = int(rng.integers(len(data)))
    return data[:place] + data[start:end] + data[place:] if rng.random() < 0.5 else data[:start] + data[end:]


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
    kinds = (flipped, truncated, lengthened, spliced, header_edited, header_edited)
    for number in range(MUTATIONS):
        change = kinds[number % len(kinds)]
        mutated = change(original, rng)
        if mutated != original:
            why = refusal(mutated)
            assert why is not None, f"{change.__name__}, number {number}, was accepted"
            assert len(why) < 1000
