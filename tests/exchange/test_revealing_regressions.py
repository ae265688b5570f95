"""Rounds of regressions that a dishonest coordinator makes up: the information XᵀWX says more than the gradient.

The first half of each test is the attack itself, on the step without any check: it recovers rows.
"""

import numpy as np
import pytest

import fedgram as fg
from exchange.test_revealing_rounds import FAR, Attack
from fedgram.core.errors import InvalidData
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.round_messages import Round, answer
from fedgram.moments import packing
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Record
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Flag, Number
from fedgram.studies.study import Study
from studies.test_basis import Table


class Regression(Attack):
    """A coordinator that asks for rounds of logistic regression."""

    def __init__(self, study=None, party=None):
        super().__init__()
        if study is None:
            return
        self.study, self.party = study, party
        joined = ClientSide(party, classes=study.classes, columns=study.sent).moments()
        self.basis = study.basis_of(joined)
        self.side = ClientSide(party, classes=study.classes, columns=study.sent, basis=self.basis)
        self.ages = np.sort(self.side.x[:, 0])

    def asked(self, slope, intercept, *, flag=0.0, number=1):
        """Return a round with these coefficients of the first column, the intercept and the last column."""
        coefficients = np.zeros(self.side.x.shape[1] + 1)
        coefficients[0], coefficients[-2], coefficients[-1] = slope, flag, intercept
        payload = {"coefficients": coefficients, "estimated": np.arange(len(coefficients))}
        asked = Round(number, "logistic", {}, self.basis, payload)
        return fgm.read(fgm.encode("round", asked, study=self.study, party="coordinator"))

    def sums(self, request):
        """Return gradient and information of a round, without any check."""
        reply = fg.Logistic().likelihood(self.side, request.payload.payload)
        return reply["gradient"], packing.unpack(reply["information"], len(reply["gradient"]))

    def between(self, k):
        """Return the middle of the k-th and the next oldest, and half their distance."""
        low, high = self.ages[-k - 1 :][:2]
        return (low + high) / 2, (high - low) / 2

    def oldest(self, k):
        return self.side.x[np.argsort(self.side.x[:, 0])[-k]]


def test_two_methods_rounds_that_differ_in_one_row():
    """A round of FedLogit, and one of logistic regression with its threshold one row further."""
    attack = Regression()
    (one, half), (other, near) = attack.between(20), attack.between(21)
    fedlogit = attack.file(attack.model([0, FAR / half], [0, -one * FAR / half]))
    logistic = attack.asked(FAR / near, -other * FAR / near)
    gradients = attack.gradient(fedlogit.payload.payload["model"])[:, 1], attack.sums(logistic)[0][:-1]
    np.testing.assert_allclose(gradients[0] - gradients[1], attack.oldest(21), atol=1e-12)
    for first, second in ((fedlogit, logistic), (logistic, fedlogit)):
        record = Record(attack.study.features, "north")
        answer(attack.study, first, attack.party, record)
        with pytest.raises(InvalidData, match=r"less answer 1 of its record, would mostly be of 1\.\d of the 60"):
            answer(attack.study, second, attack.party, record)


def test_the_information_of_two_rows_shows_both():
    """A steep slope between two rows: only they have weights, and sums of products of two rows are the two rows."""
    attack = Regression()
    middle, half = attack.between(20)
    request = attack.asked(40 / half, -40 / half * middle)
    _, information = attack.sums(request)
    mean = information[:-1, -1] / information[-1, -1]
    spread = information[:-1, :-1] / information[-1, -1] - np.outer(mean, mean)
    sizes, directions = np.linalg.eigh(spread)
    away = directions[:, -1] * np.sqrt(sizes[-1])
    found = sorted((mean - away, mean + away), key=lambda row: row[0])
    np.testing.assert_allclose(found, [attack.oldest(21), attack.oldest(20)], atol=1e-6)
    with pytest.raises(InvalidData, match=r"information .* mostly be of 2\.\d of the 60 samples"):
        answer(attack.study, request, attack.party)


def test_the_informations_row_of_a_small_group_shows_one_of_it():
    """The flag's row of XᵀWX sums over its five patients; its coefficient moves all but the oldest of them away."""
    columns = {"age": Number(range=(0, 120)), "bp": Number(range=(0, 250)), "flag": Flag()}
    study = Study("rounds", "y", columns, ("ill", "well"), minimum_samples=10)
    rng, n = np.random.default_rng(3), 400
    rows = {"age": rng.uniform(20, 90, n), "bp": rng.uniform(80, 200, n), "y": np.array(["ill", "well"] * (n // 2))}
    flags = np.where(np.isin(np.argsort(np.argsort(rows["age"])), [40, 120, 200, 280, 360]), "yes", "no")
    attack = Regression(study=study, party=read_client(study, "north", Table(rows | {"flag": flags})))
    low, high = np.unique(attack.side.x[:, 2])  # no and yes, in the basis
    flagged = attack.side.x[attack.side.x[:, 2] == high]
    oldest = flagged[flagged[:, 0].argmax()]
    slope = 60.0
    middle = np.median(attack.ages)
    moved = slope * (middle - oldest[0]) / (high - low)
    request = attack.asked(slope, -slope * middle - moved * low, flag=moved)
    _, information = attack.sums(request)
    of_flag = information[-2] - low * information[-1]
    np.testing.assert_allclose(of_flag[:2] / of_flag[-1], oldest[:2], atol=1e-6)
    with pytest.raises(InvalidData, match=r"information .* mostly be of 1\.\d of the 400 samples of 'north'"):
        answer(study, request, attack.party)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_information_less_another_shows_a_small_group(scaled):
    """A flag of four patients: all others cancel, against a quarter of XᵀX or against a round of smaller rates."""
    columns = {"age": Number(range=(0, 120)), "bp": Number(range=(0, 250)), "flag": Flag()}
    study = Study("rounds", "y", columns, ("ill", "well"), minimum_samples=10)
    rng, n = np.random.default_rng(3), 400
    rows = {"age": rng.uniform(20, 90, n), "bp": rng.uniform(80, 200, n), "y": np.array(["ill", "well"] * (n // 2))}
    flags = np.where(np.arange(n) % 100 == 7, "yes", "no")
    attack = Regression(study=study, party=read_client(study, "north", Table(rows | {"flag": flags})))
    low, high = np.unique(attack.side.x[:, 2])
    group = np.column_stack([attack.side.x[attack.side.x[:, 2] == high], np.ones(4)])
    every = np.column_stack([attack.side.x, np.ones(n)])
    move = 40 / (high - low)
    if scaled:
        first, second = attack.asked(0.1, -30), attack.asked(0.1, -31 + 5 * low, flag=-5.0)
        known, factor = attack.sums(first)[1], np.exp(1 + 5 * (low - low))
    else:
        first, second = None, attack.asked(0.0, move * low, flag=-move)
        known, factor = every.T @ every / 4, 1.0
    found = known - factor * attack.sums(second)[1]
    shape = group.T @ (group * np.exp(0.1 * group[:, :1])) if scaled else group.T @ group
    np.testing.assert_allclose(found / found[-1, -1], shape / shape[-1, -1], rtol=1e-6)
    record = Record(study.features, "north")
    if first is not None:
        answer(study, first, attack.party, record)
    with pytest.raises(InvalidData, match=r"information.*, less .* mostly be of 4\.0 of the 400 samples of 'north'"):
        answer(study, second, attack.party, record)


def test_pearsons_statistic_shows_the_oldest():
    """Rates that fall steeply with age, from the highest rate that is computed with: 1/μ is that of the oldest."""
    columns = {"age": Number(range=(0, 120)), "bp": Number(range=(0, 250)), "y": Number(range=(0, 1000))}
    study = Study("rounds", "y", columns, minimum_samples=10)
    rng, n = np.random.default_rng(3), 200
    rows = {"age": rng.uniform(20, 90, n), "bp": rng.uniform(80, 200, n), "y": rng.integers(1, 3, n).astype(float)}
    party = read_client(study, "north", Table(rows))
    joined = ClientSide(party, classes=study.schema.classes, columns=study.sent).moments()
    basis = study.basis_of(joined)
    side = ClientSide(party, classes=study.schema.classes, columns=study.sent, basis=basis, study=study)
    oldest, nearest = np.sort(side.x[:, 0])[::-1][:2]
    slope, method = 54 / (oldest - np.median(side.x[:, 0])), fg.Poisson()
    slope = max(slope, 12 / (oldest - nearest))
    coefficients = np.array([-slope, 0.0, slope * (oldest - 34 / slope)])  # η of the oldest is -34, which is hidden
    payload = {"coefficients": coefficients, "estimated": np.arange(3)}
    told = method.likelihood(side, payload)["pearson"]
    candidates = [(coefficients[-1] + np.log(told) - 2 * np.log(y)) / slope for y in (1, 2)]
    assert min(abs(found - oldest) for found in candidates) < 1e-4
    request = fgm.read(fgm.encode("round", Round(1, "poisson", {}, basis, payload), study=study, party="coordinator"))
    with pytest.raises(InvalidData, match=r"answer's sum beside the gradient would mostly be of 1\.\d of the 200"):
        answer(study, request, party)


def test_a_group_of_one_that_the_study_allows_is_no_reason_to_refuse():
    columns = {"age": Number(range=(0, 120)), "bp": Number(range=(0, 250)), "flag": Flag()}
    study = Study("rounds", "y", columns, ("ill", "well"), minimum_samples=10, minimum_group=0)
    rng, n = np.random.default_rng(3), 60
    rows = {"age": rng.uniform(20, 90, n), "bp": rng.uniform(80, 200, n), "y": np.array(["ill", "well"] * (n // 2))}
    flags = np.where(np.arange(n) == 7, "yes", "no")
    attack = Regression(study=study, party=read_client(study, "north", Table(rows | {"flag": flags})))
    assert answer(study, attack.asked(0.3, 0.1), attack.party).number == 1
