"""Clients' sums about test samples: impossible sums are refused, and nothing else is sent."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram.core import wire
from fedgram.core.errors import RefusedMessage
from fedgram.evaluation import BINS, Calibration
from fedgram.protocol import replies
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.replies import Judgement, Question
from protocol.test_fit_files import save_with
from support.lying import Spoiled

QUESTION = Question("a", None, 0, (0, 1), (3,), "", samples=10, tested=4)


def said(**changes):
    counts = {"samples": np.array([4] + [0] * 9), "right": np.array([3] + [0] * 9)}
    return {"squared": 1.5, **counts, "confidence": np.array([2.5] + [0.0] * 9)} | changes


def at(place, value, dtype=np.int64):
    found = np.zeros(BINS, dtype=dtype)
    found[place] = value
    return found


@pytest.mark.parametrize("good", [said(), 0, 4, said(right=at(0, 0)), said(squared=8.0)])
def test_what_can_be_is_taken(good):
    replies.check(good, Judgement(), QUESTION)


@pytest.mark.parametrize(
    "lie",
    [
        5,
        -1,
        2.0,
        True,
        {},
        said(squared=-0.1),
        said(squared=8.1),
        said(squared=np.nan),
        said(samples=at(0, 3)),
        said(samples=at(0, 5)),
        said(right=at(1, 1)),
        said(right=at(0, 5)),
        said(confidence=at(0, 4.1, float)),
        said(confidence=at(3, 0.1, float)),
        said(confidence=at(0, -0.1, float)),
        said(confidence=np.zeros(3)),
        said(extra=1),
    ],
)
def test_sums_that_no_probabilities_have_are_refused(lie):
    with pytest.raises(RefusedMessage):
        replies.check(lie, Judgement(), QUESTION)


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
def test_who_lies_about_its_probabilities_is_left_out_of_the_evaluation():
    clients = checks.some_clients()
    fit = fg.AFL().fit(clients, classes=10, engine=Spoiled("evaluate", said(squared=1e9)))
    honest = fg.AFL().fit(clients, classes=10)
    assert fit.evaluation.failed.keys() == {"client-0"}
    assert fit.evaluation.calibration == {
        name: sums for name, sums in honest.evaluation.calibration.items() if name != "client-0"
    }


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
def test_the_evaluation_has_the_probabilities_of_all_test_samples(tmp_path):
    clients = checks.some_clients()
    fit = fg.AFL().fit(clients, classes=10)
    x, y = (np.concatenate([getattr(client, name) for client in clients]) for name in ("x_test", "y_test"))
    want = Calibration.of(fit.model.predict_proba(x), y)
    found = fit.evaluation.probabilities
    assert (found.samples, found.right) == (want.samples, want.right)
    assert found.brier == pytest.approx(want.brier)
    assert found.error == pytest.approx(want.error)
    assert fit.report()["probabilities"] == found.summary()
    fit.save(tmp_path / "fit.fedgram")
    assert fg.load(tmp_path / "fit.fedgram").evaluation.calibration == fit.evaluation.calibration


@dataclass(frozen=True, kw_only=True)
class CountsOnly(fg.AFL):
    """Judges models in its own way."""

    @fg.step
    def evaluate(self, client, model=None):
        return 1


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
def test_a_method_may_count_alone():
    fit = CountsOnly().fit(checks.some_clients(), classes=10)
    assert set(fit.evaluation.correct.values()) == {1}
    assert fit.evaluation.probabilities is None
    assert "probabilities" not in fit.report()


def test_what_crosses_is_sums_and_no_range_of_fewer_samples_than_a_cell():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    side = ClientSide(fg.Client("a", x, y, x, y), classes=(0, 1, 2), minimum_cell=5)
    model = fg.LinearModel(rng.normal(size=(3, 3)), (0, 1, 2))
    reply = fg.AFL().evaluate(side, model)
    assert {name: np.shape(value) for name, value in reply.items()} == {
        "squared": (), "samples": (BINS,), "right": (BINS,), "confidence": (BINS,),
    }  # fmt: skip
    assert min(count for count in reply["samples"] if count) >= 5
    assert (Calibration.judged(model, [(x, y)]).sums()["samples"] < 5).any()
    assert len(wire.encode(reply)) < 1000


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"samples": (1,) * 10}, "10 ranges with all its test samples"),
        ({"samples": (1,)}, "10 ranges with all its test samples"),
        ({"squared": -1.0}, "must be a number ≥ 0"),
        ({"right": (-1,) * 10}, "must be a whole number ≥ 0"),
    ],
)
def test_a_file_with_wrong_probabilities_is_refused(tmp_path, monkeypatch, changes, told):
    fit = fg.AFL().fit(checks.some_clients(), classes=10)
    first = next(iter(fit.evaluation.calibration))
    fields = fit.evaluation.to_fields()
    fields["calibration"][first] |= changes
    save_with(fit, tmp_path / "fit.fedgram", monkeypatch, evaluation=fields)
    with pytest.raises(RefusedMessage, match=told):
        fg.load(tmp_path / "fit.fedgram")
