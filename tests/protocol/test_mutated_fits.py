"""Thousands of damaged and forged files of fits: refused by name, or fits that can be used."""

import copy
import hashlib
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram.core.errors import FedgramError, Mismatch
from fedgram.protocol.fit import load_model
from support import campaign
from support.mutations import changed_within, damaged, with_odd_number

METHODS = {
    "afl": fg.AFL,
    "fedgram": fg.FedGram,
    "fedhip": fg.FedHiP,
    "apfl": lambda: checks.example("apfl"),
    "fedlogit": fg.FedLogit,
    "fedavg": lambda: checks.example("fedavg"),
    "pfedacnnl": lambda: checks.example("pfedacnnl"),
}
DIGEST = slice(35, 99)  # where a message's digest stands


@pytest.fixture(scope="module", params=METHODS)
def original(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("fits") / "fit"
    checks.fit(METHODS[request.param](), checks.some_clients(3, 120)).save(path)
    return path.read_bytes()


def sealed(data):
    """Return a message with the right digest."""
    bare = data[: DIGEST.start] + b"0" * 64 + data[DIGEST.stop :]
    return bare.replace(b"0" * 64, hashlib.sha256(bare).hexdigest().encode(), 1)


def parts(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def message(entries, body):
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return sealed(len(text).to_bytes(8, "little") + text + body)


def forged(data, rng):
    """Return a message that its writer sealed after a change: of the tree, of the arrays' places, or of numbers."""
    entries, body = parts(data)
    kind = rng.integers(4)
    if kind == 0:
        return message(entries, with_odd_number(body, rng, str(rng.choice(["<f8", "<f4", "<i8"]))))
    if kind == 1:
        arrays = {name: entry for name, entry in entries.items() if name != "__metadata__"}
        changed_within(arrays, rng)
        return message({"__metadata__": entries["__metadata__"]} | arrays, body)
    tree = json.loads(entries["__metadata__"]["fedgram"])
    for _ in range(rng.integers(1, 3)):
        changed_within(tree, rng)
    entries["__metadata__"]["fedgram"] = json.dumps(tree, separators=(",", ":"))
    return message(entries, body)


def test_what_is_only_sealed_anew_is_the_same(original):
    assert sealed(original) == original
    assert message(*parts(original)) == original


@pytest.mark.campaign
def test_damaged_fits_are_refused(original, tmp_path):
    rng = np.random.default_rng(20)
    for number in range(campaign.size(60)):
        data = damaged(original, rng)
        if data == original:
            continue
        (tmp_path / "fit").write_bytes(data)
        with pytest.raises(FedgramError) as refused:
            fg.load(tmp_path / "fit")
        assert "\n" not in str(refused.value), number
        assert len(str(refused.value)) < 1000, number


@pytest.mark.campaign
def test_forged_fits_are_refused_or_can_be_used(original, tmp_path):
    """An accepted fit can be displayed, written and used, or reports that it cannot be used."""
    rng, taken, tried = np.random.default_rng(21), 0, campaign.size(30)
    client = checks.some_clients(3, 120)[0]
    for _ in range(tried):
        (tmp_path / "fit").write_bytes(forged(original, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                fit = fg.load(tmp_path / "fit")
            except FedgramError as error:
                assert "\n" not in str(error)
                continue
            taken += 1
            json.dumps(copy.deepcopy(fit.report()))
            fit.save(tmp_path / "again")
            assert fg.load(tmp_path / "again").contributors == fit.contributors
            for use in (
                lambda fit: load_model(tmp_path / "fit").predict(client.x),
                lambda fit: [model.scores(client.x) for model in fit.personal.values()],
                lambda fit: fit.personalize(client).predict(client.x),
                lambda fit: fit.remove(fit.summarize(client), name=client.name),
                lambda fit: fit.add(fit.summarize(client), name="other"),
            ):
                try:
                    use(fit)
                except FedgramError as error:
                    assert "\n" not in str(error)
    assert 0 < taken < tried


def test_a_message_of_another_kind_is_refused():
    fit = replace(checks.fit(checks.example("apfl"), checks.some_clients(3, 120)), message="study")
    with pytest.raises(Mismatch, match="message of a fit: expected a message of apfl, got a str"):
        fit.personalize(checks.some_clients(3, 120)[0])
