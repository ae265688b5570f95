"""Secure sums at 1,280 columns, beside adding up plain moments, which are decoded and checked one by one.

A client converts, blurs, masks, signs and seals its numbers; a witness opens a seed and sums one stream for each party;
the coordinator opens, verifies and adds up the uploads. `PARTIES=1000` adds up 1,000 parties.
"""

import os

import numpy as np

from benchmarks.measure import Results, cpu_seconds, peak_bytes
from fedgram import Moments
from fedgram.core.fixed_point import Fixed
from fedgram.secure.masks import blurred, new_seed
from fedgram.secure.secure_sums import Collected, Request, Roster, SecureParty, Witness
from fedgram.secure.signing_keys import PrivateKey

PARTIES = int(os.environ.get("PARTIES", "20"))
D, CLASSES, FEW = 1280, 10, 4
COUNT = D * (D + 1) // 2 + CLASSES * D + CLASSES


def main() -> None:
    x = np.random.default_rng(0).normal(scale=1e3, size=COUNT)
    secret = new_seed()
    keys = {f"party-{k:04d}": PrivateKey.new() for k in range(PARTIES)}
    own, witnesses = PrivateKey.new(), [PrivateKey.new(), PrivateKey.new()]
    public = {name: key.public for name, key in keys.items()}
    roster = Roster("benchmark", own.public, public, tuple(key.public for key in witnesses))
    request = Request("run", 0, "summarize", 0, "0" * 64, COUNT)

    def upload(name: str) -> bytes:
        numbers = blurred(Fixed.of(x, parties=PARTIES), x, 53, secret)
        return SecureParty(roster, name, keys[name]).upload(request, numbers, version="1")

    def collect(uploads: dict[str, bytes]) -> Collected:
        collected = Collected(roster, own, request)
        for name, data in uploads.items():
            collected.add(name, data)
        return collected

    def collect_all(names: list[str]) -> Collected:
        collected = Collected(roster, own, request)
        for name in names:
            collected.add(name, upload(name))
        return collected

    rng = np.random.default_rng(0)
    plain = Moments.of(rng.standard_normal((2000, D)), rng.integers(0, CLASSES, 2000), classes=CLASSES).to_bytes()

    def add_plain() -> Moments:
        return Moments.sum(Moments.from_bytes(plain) for _ in range(FEW))

    names = list(keys)
    uploads = {name: upload(name) for name in names[:FEW]}
    client, secure, bare = cpu_seconds(lambda: upload(names[0]), lambda: collect(uploads), add_plain)
    headers = list(collect_all(names).headers.values())
    [witness] = cpu_seconds(lambda: Witness(roster, witnesses[0]).answer(headers), repeats=1)
    few, many = (peak_bytes(lambda part=part: collect_all(part)) for part in (names[:FEW], names))

    results = Results(f"secure sums of {PARTIES:,} parties, {D:,} columns, two witnesses")
    results.at_most("a client's seconds", client, 0.15)
    results.at_most("a witness's milliseconds, a party and stream", 1000 * witness / PARTIES, 30)
    results.at_most("upload / 8 bytes a number", len(uploads[names[0]]) / (8 * COUNT), 2.05)
    results.note("coordinator's milliseconds a party: secure, plain", f"{250 * secure:.1f}, {250 * bare:.1f}")
    results.at_most("adding up / the plain sum with decoding and checks", secure / bare, 2.5)
    results.at_most("memory with all parties / with 4", many / few, 1.1)
    results.show()
