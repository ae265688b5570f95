"""Rounds and models with values of any kind in them, sealed correctly: they are used, or refused by name."""

import copy
import json

import numpy as np
import pytest

from fedgram.core.errors import FedgramError
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.party_side import Party, model_of, personalize, reply, summarize
from fedgram.exchange.rounds.round_server import advance
from fedgram.exchange.store.publishing import publish
from fedgram.exchange.store.study_store import Store
from fedgram.studies import Study
from fedgram.studies.model import judge
from support import campaign
from support.exchange import PARTIES, TEXT, tables
from support.fgm import body_of, resealed, sealed

TIMES = campaign.size(40)  # of each kind of file; 400 in a campaign
NUMBERS = [0.0, -1.0, 1e-300, 1e300, -1e300, 1e16, np.nan, np.inf, 0.5]
VALUES = [None, 0, -1, 2**70, 1e308, -1e-308, True, "", "x", "study", [], {}, [1, 2], [[]], {"a": None}]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a study, a party's table, and files of each kind that parties are sent, unsigned."""
    folder = tmp_path_factory.mktemp("forged")
    study, paths = Study.parse(TEXT), tables(folder)
    store = Store(folder / "store", study=study)
    store.join(*(summarize(study, paths[name], Party(name)) for name in PARTIES))
    sent = {method: advance(store, method, settings, restart=True).data for method, settings in ROUNDS.items()}
    for method in ("fedgram", "fedhip", "afl"):
        sent[f"global {method}"] = publish(store, method).data
    sent["personal"] = personalize(fgm.read(sent["global fedgram"]), paths["north"], Party("north"), keep="own").data
    return study, paths["north"], {name: resealed(data, signer="", signature="") for name, data in sent.items()}


ROUNDS = {"fedlogit": {"rounds": 3}, "apfl": {"dim_primary": 16, "dim_refine": 8}}
KINDS = [*ROUNDS, "global fedgram", "global fedhip", "global afl", "personal"]


def places(tree, path=()):
    """Yield the places of all values in a payload's tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def forged(data, rng):
    """Return a file with one value changed: in the tree or in an array, or an array in another's place."""
    metadata, shapes = fgm.parse(data)
    body, tree = bytearray(body_of(data)), json.loads(metadata["fedgram"])
    if rng.random() < 0.3 and len(body) >= 8:
        for _ in range(rng.integers(1, 4)):
            place = 8 * int(rng.integers(len(body) // 8))
            body[place : place + 8] = np.float64(rng.choice(NUMBERS)).tobytes()
    else:
        everything = [place for place in places(tree) if "study" not in place]
        *above, last = everything[rng.integers(len(everything))]
        holder = tree
        for key in above:
            holder = holder[key]
        holder[last] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    metadata["fedgram"] = json.dumps(tree, separators=(",", ":"))
    return sealed(metadata, shapes, bytes(body))


def used(kind, study, table, path, folder):
    """Use a file as a party does."""
    if kind in ROUNDS:
        reply(study, table, Party("north"), fgm.read(path), records=folder)
        return
    if kind != "personal":
        personalize(fgm.read(path), table, Party("north"))
    scorer = model_of(path)
    judge(scorer, table)
    scorer.predict(table)
    scorer.predict_proba(table)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_forged_values_are_used_or_refused(made, tmp_path, kind):
    study, table, sent = made
    rng, path = np.random.default_rng([27, *kind.encode()]), tmp_path / "sent.fgm"
    path.write_bytes(sent[kind])
    used(kind, study, table, path, tmp_path)
    refused = 0
    for number in range(TIMES):
        data = forged(sent[kind], rng)
        path.write_bytes(data)
        try:
            used(kind, study, table, path, tmp_path / str(number))
        except FedgramError as error:
            refused += 1
            assert len(str(error)) < 2000
    assert refused > TIMES / 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "asked",
    [None, [], {}, {"model": None, "leverage": 0.0}, "leverage", {"leverage": None}, {"leverage": "1"},
     {"leverage": -1.0}, {"leverage": True}, {"model": "x"}, {"model": [1.0]}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_a_round_without_a_model_or_a_leverage_is_refused(made, tmp_path, asked):
    study, table, sent = made
    honest = fgm.read(sent["fedlogit"]).payload
    payload = {**honest.payload, **asked} if isinstance(asked, dict) and asked else asked
    given = {name: getattr(honest, name) for name in ("number", "method", "settings", "basis")}
    data = fgm.encode("round", type(honest)(**given, payload=payload), study=study, party="coordinator")
    with pytest.raises(FedgramError, match="step 'gradient': expected"):
        reply(study, table, Party("north"), fgm.read(data), records=tmp_path)
