"""Files of this version keep loading, for ever. New versions add files here; those that are here stay."""

from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.round_messages import Answer, Round
from fedgram.models import LinearModel
from fedgram.moments.basis import Basis
from support.exchange import key_of, keyed_study

STORED = Path(__file__).parent / "stored"
VERSION, CREATED = "0.1.0", "2026-11-17T09:30:00Z"  # of the stored files


def summary():
    """Return a summary of 40 samples whose sums are whole numbers, the same on every processor."""
    study = keyed_study()
    x = np.zeros((40, len(study.sent)))
    x[:, 0] = (np.arange(40) % 5 - 2) / 2
    x[::4, 2] = 1.0
    x[::3, 3] = 1.0
    moments = fg.Moments.of(x, np.arange(40) % 2, classes=study.classes, features=study.features, columns=study.sent)
    return "summary", moments, {"study": study, "party": "north", "samples": 40, "columns": study.sent}


def model(study):
    weights = np.arange(2 * len(study.sent), dtype=float).reshape(-1, 2) / 8
    return LinearModel(weights, study.classes, np.array([0.5, -0.5]), study.features, study.sent)


def asked():
    study = keyed_study()
    basis = Basis.of({name: ({name: 2.0}, -1.0) for name in study.sent}, study.sent)
    payload = {"model": model(study), "leverage": 0.25}
    return "round", Round(1, "fedlogit", {"rounds": 4}, basis, payload), {"study": study, "party": "coordinator"}


def answered():
    study = keyed_study()
    reply = {"gradient": np.ones((len(study.sent) + 1, 2)), "unexplained": 1.0}
    return "answer", Answer(1, "ab" * 32, reply), {"study": study.fingerprint, "party": "north", "samples": 40}


def published():
    study = keyed_study()
    basis = Basis.of({name: ({name: 2.0}, -1.0) for name in study.sent}, study.sent)
    fit = fg.Fit(
        model(study),
        "afl",
        {"gamma": 1.0, "ri": True, "intercept": True},
        0,
        ("north", "south"),
        message=model(study),
        engine="files",
        study=study,
        basis=basis,
    )
    return "global", fit, {"study": study.fingerprint, "party": "coordinator"}


def personal():
    study = keyed_study()
    return "personal", study.model(model(study)), {"study": study.fingerprint, "party": "north", "samples": 40}


KINDS = {make.__name__: make for make in (summary, asked, answered, published, personal)}


def encoded(name):
    kind, payload, options = KINDS[name]()
    return fgm.encode(kind, payload, **options, key=key_of(0), created=CREATED)


@pytest.mark.parametrize("name", KINDS)
def test_files_are_written_as_before(name, monkeypatch):
    monkeypatch.setattr(fg, "__version__", VERSION)
    assert encoded(name) == (STORED / f"{name}.fgm").read_bytes()


@pytest.mark.parametrize("name", sorted(path.name for path in STORED.iterdir()))
def test_stored_files_keep_loading(name):
    file = fgm.read(STORED / name)
    file.verify(key_of(0).public)
    assert file.header.software == f"fedgram {VERSION}"


def test_what_a_stored_summary_says():
    file = fgm.read(STORED / "summary.fgm")
    assert (file.header.party, file.header.samples, file.study) == ("north", 40, keyed_study())
    assert file.payload.counts.tolist() == [20, 20]
    assert file.payload.cross[0].tolist() == [0.0, 0.0]


if __name__ == "__main__":
    for name in KINDS:
        path = STORED / f"{name}.fgm"
        if not path.exists():  # never over one that was published
            path.write_bytes(encoded(name))
