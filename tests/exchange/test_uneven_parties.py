"""Honest answers to rounds are never refused, for any difference of the parties' tables."""

import numpy as np
import pytest

from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.round_messages import Round, answer, check_answer
from fedgram.heads.logistic import Logistic, Said
from fedgram.protocol.clientside import ClientSide
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Flag, Number
from fedgram.studies.study import Study
from studies.test_basis import Table
from support import campaign

ROUNDS = 5  # of FedLogit


def parties(rng):
    """Return a study without thresholds, and three parties: of 2 to 8,000 rows, in other units, some of one class."""
    classes = "wxyz"[: rng.integers(2, 5)]
    columns = {"a": Number(range=(0, 120)), "b": Number(), "f": Flag()}
    limits = {"minimum_samples": 0, "minimum_cell": 0, "maximum_columns_per_row": 0.0}
    study = Study("any", "y", columns, tuple(classes), **limits)
    offset, scale = 10.0 ** rng.uniform(-6, 9), 10.0 ** rng.uniform(-6, 6)
    found = []
    for k, n in enumerate(rng.choice([2, 3, 12, 60, 400, 8000], size=3)):
        y = np.full(n, rng.integers(len(classes))) if rng.random() < 0.25 else rng.integers(0, len(classes), n)
        noise = rng.standard_cauchy(n) if rng.random() < 0.3 else rng.normal(size=n)
        rows = {
            "a": np.clip(60 + 15 * (rng.normal(size=n) + y), 0, 120),
            "b": offset + scale * noise * rng.choice([0, 1, 1, 1000]),
            "f": np.where(rng.random(n) < rng.choice([0, 0.02, 0.5]), "yes", "no"),
            "y": np.array(list(classes))[y],
        }
        found.append(read_client(study, f"party-{k}", Table(rows)))
    return study, found


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")  # of columns far from zero, few samples and new records
@pytest.mark.parametrize("seed", range(campaign.size(10)))
def test_honest_answers_of_uneven_parties_are_taken(seed):
    rng = np.random.default_rng(seed)
    study, clients = parties(rng)
    joined = [ClientSide(each, classes=study.classes, columns=study.sent).moments() for each in clients]
    total = sum(joined[1:], joined[0])
    basis = study.basis_of(total)
    ascent = Logistic(basis.moments(total), "auto")
    for number in range(1, ROUNDS + 1):
        asked = {"model": ascent.ahead, "leverage": ascent.leverage}
        said = replies(study, clients, joined, Round(number, "fedlogit", {}, basis, asked))
        ascent.climb(Said(**{name: sum(reply[name] for reply in said) for name in said[0]}))
    settings = {
        "dim_primary": int(rng.integers(1, 200)),
        "activation_primary": str(rng.choice(["relu", "tanh", "gelu"])),
    }
    assert len(replies(study, clients, joined, Round(1, "apfl", settings, basis, None))) == len(clients)


def replies(study, clients, joined, asked):
    """Return the parties' replies to a round as the coordinator takes them: every party answers, none is refused."""
    request = fgm.read(fgm.encode("round", asked, study=study, party="coordinator"))
    found = []
    for client, moments in zip(clients, joined, strict=True):
        about = {"study": study.fingerprint, "samples": len(client.y), "columns": study.sent, "party": client.name}
        answered = fgm.read(fgm.encode("answer", answer(study, request, client), **about))
        found.append(check_answer(study, request, answered, moments).reply)
    return found
