"""Sums of errors that clients send: a lying client fails alone, and a lying file is refused."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.classes import NUMERIC
from fedgram.core.errors import RefusedMessage
from fedgram.moments.targets import NumericTargets
from fedgram.protocol import replies
from fedgram.protocol.replies import Judgement, Question
from fedgram.studies import Study
from fedgram.studies.encoding import as_client
from fedgram.studies.kinds import Number
from protocol.test_fit_files import save_with
from support.lying import Spoiled

STUDY = Study("costs", "cost", {"age": Number(range=(0, 120)), "cost": Number(range=(0, 100))})
GOOD = {"squared": 4.0, "absolute": 2.5, "total": 30.0, "spread": 7.0}


def clients():
    rng = np.random.default_rng(0)
    found = []
    for k in range(3):
        rows = rng.uniform(-1, 1, size=(30, 2))
        rows[:, 1] = 0.5 * rows[:, 0] + 0.1 * rows[:, 1]
        labels = np.zeros(20, dtype=np.int64)
        found.append(as_client(STUDY, f"client-{k}", rows[:20], labels, x_test=rows[20:], y_test=labels[:10]))
    return found


def sums(**changes):
    return {name: np.array([value]) for name, value in (GOOD | changes).items()}


def question(tested=4):
    return Question(
        "client-0", None, 0, NUMERIC, (1,), "", 10, tested, ("age",), ("cost",), NumericTargets.named("cost")
    )


def test_sums_that_errors_have_are_taken():
    replies.check(sums(), Judgement(), question())


@pytest.mark.parametrize(
    "lie",
    [
        sums(squared=-1.0),
        sums(squared=np.nan),
        sums(spread=-0.1),
        sums(total=1e305),
        sums(absolute=1.9),  # less than the root of the squares' sum
        sums(absolute=4.1),  # more than 4 errors of these squares can have
        {name: np.zeros(2) for name in GOOD},
        {name: value for name, value in sums().items() if name != "spread"},
        7,
    ],
)
def test_sums_that_no_errors_have_are_refused(lie):
    with pytest.raises(RefusedMessage):
        replies.check(lie, Judgement(), question())


def test_a_client_that_lies_about_its_errors_is_listed_and_left_out():
    engine = Spoiled("evaluate", sums(squared=-1.0))
    fit = fg.AFL().fit(clients(), study=STUDY, engine=engine)
    honest = fg.AFL().fit(clients(), study=STUDY)
    assert fit.evaluation.failed.keys() == {"client-0"}
    assert fit.evaluation.untested == 1
    assert fit.evaluation.by_client == {name: honest.evaluation.by_client[name] for name in ("client-1", "client-2")}
    told = fit.report()
    assert told["errors"] == fit.evaluation.summary()
    assert (told["accuracy"], told["untested"], list(told["failed"])) == (None, 1, ["client-0"])


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ({"errors": 5, "tested": {}}, "'evaluation/errors' of a fit must be a table, got 5"),
        ({"errors": {}, "tested": {"a": 2}}, "'a' must have errors of 2 samples"),
        ({"errors": {"a": {"cost": GOOD | {"n": 3}}}, "tested": {"a": 2}}, "'a' must have errors of 2 samples"),
        ({"errors": {"a": {"cost": GOOD | {"n": 2, "squared": -1.0}}}, "tested": {"a": 2}}, "must be a number ≥ 0"),
        ({"errors": {"a": {"cost": GOOD}}, "tested": {"a": 2}}, "must have"),
        (
            {
                "errors": {"a": {"cost": GOOD | {"n": 2}}, "b": {"stay": GOOD | {"n": 2}}},
                "tested": {"a": 2, "b": 2},
            },
            "errors of the same outcomes",
        ),
    ],
)
def test_a_file_with_wrong_errors_is_refused(tmp_path, monkeypatch, errors, told):
    fit = fg.AFL().fit(clients(), study=STUDY)
    save_with(fit, tmp_path / "fit.fedgram", monkeypatch, evaluation=errors)
    with pytest.raises(RefusedMessage, match=told):
        fg.load(tmp_path / "fit.fedgram")
