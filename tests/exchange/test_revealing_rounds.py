"""Rounds that a dishonest coordinator makes up to read single rows: each would give one exactly, and is refused.

The first half of each test is the attack itself, on the step without any check: it recovers the row.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import Doubtful, InvalidData, Mismatch, RefusedMessage, Revealing, tell
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.party_side import Party, reply
from fedgram.exchange.rounds.round_messages import Round, answer
from fedgram.exchange.rounds.round_server import advance
from fedgram.heads import logistic
from fedgram.heads.logistic import FARTHEST, Logistic, Said, gradient
from fedgram.models import LinearModel
from fedgram.moments.basis import Basis
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Record, effective_rows, record_path, recording
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Number
from fedgram.studies.study import Study
from studies.test_basis import Table
from support.stores import STUDY as LOOSE
from support.stores import client, store_of

COLUMNS = {"age": Number(range=(0, 120)), "bp": Number(range=(0, 250)), "crp": Number(range=(0, 100))}
FAR = 1e3  # what makes probabilities 0 and 1


def study_of(c, **options):
    return Study("rounds", "y", COLUMNS, ("ill", "well", "rare", "other")[:c], minimum_samples=10, **options)


def party_of(study, n=60, seed=0, name="north"):
    rng = np.random.default_rng(seed)
    rows = {"age": rng.uniform(20, 90, n), "bp": rng.uniform(80, 200, n), "crp": rng.uniform(0, 99, n)}
    labels = np.array(study.classes)[rng.integers(0, len(study.classes), n)]
    return read_client(study, name, Table(rows | {"y": labels}))


class Attack:
    """A coordinator that knows the parties' sums, and searches for the oldest patient of a party."""

    def __init__(self, c=2, **options):
        self.study = study_of(c, **options)
        self.party = party_of(self.study)
        self.joined = ClientSide(self.party, classes=self.study.classes, columns=self.study.sent).moments()
        self.basis = self.study.basis_of(self.joined)
        self.side = ClientSide(self.party, classes=self.study.classes, columns=self.study.sent, basis=self.basis)
        self.ages = np.sort(self.side.x[:, 0])
        self.target = self.side.x[self.side.x[:, 0].argmax()]
        self.threshold = self.ages[-2:].mean()
        self.made = self.basis.moments(self.joined)

    def model(self, slopes, intercepts, **options):
        weights = np.zeros((3, len(self.study.classes)))
        weights[0] = slopes
        intercept = np.array(intercepts, dtype=float)
        return LinearModel(weights, self.study.classes, intercept, self.study.features, self.basis.columns, **options)

    def above(self, size, offset=0.0):
        """Return slope and intercept of a score that is beyond `size` for the oldest only, and below for all others."""
        steep = size / (self.ages[-1] - self.threshold)
        return steep, -steep * self.threshold + offset

    def file(self, model, number=1, leverage=0.0, **change):
        given = {"method": "fedlogit", "settings": {}, "basis": self.basis} | change
        asked = Round(number, payload={"model": model, "leverage": leverage}, **given)
        return fgm.read(fgm.encode("round", asked, study=self.study, party="coordinator"))

    def gradient(self, model):
        return gradient(self.side.x, self.side.y, model).gradient[:-1]

    def refused(self, model, record=None, match=r"mostly be of 1\.\d of the 60 samples of 'north'"):
        with pytest.raises(InvalidData, match=match) as caught:
            answer(self.study, self.file(model), self.party, record)
        assert tell(caught.value).startswith("minimum_cell: an answer would show fewer samples")

    def recovers(self, row):
        np.testing.assert_allclose(row, self.target, atol=1e-12)


def test_a_two_rounds_that_differ_in_one_row():
    attack = Attack()
    slope, intercept = attack.above(FAR)
    everybody, but_one = attack.model([0, 0], [FAR, 0]), attack.model([-slope, 0], [-intercept, 0])
    before, after = attack.gradient(everybody), attack.gradient(but_one)
    attack.recovers((after - before)[:, 0])
    record = Record(attack.study.features, "north")
    answer(attack.study, attack.file(everybody), attack.party, record)  # which reveals no more than the summary
    attack.refused(but_one, record)
    assert len(record.answers) == 1


def test_a_one_round_less_the_class_sums_of_the_summary():
    attack = Attack()
    slope, intercept = attack.above(FAR)
    but_one = attack.model([-slope, 0], [-intercept, 0])
    known = attack.made.cross[:, 0] - attack.made.cross.sum(axis=1)  # what y - 1 gives
    attack.recovers(attack.gradient(but_one)[:, 0] - known)
    attack.refused(but_one)


def test_a_two_rounds_that_mirror_each_other():
    """The two answers' sum is of one row, not their difference: a model, and its opposite for all rows but one."""
    attack = Attack()

    def above(k, sign):
        low, high = attack.ages[-k - 1 :][:2]
        slope = sign * FAR / (high - low)
        return attack.model([slope, 0], [-slope * (low + high) / 2, 0])

    one, other = above(20, 1), above(21, -1)
    known = 2 * attack.made.cross[:, 0] - attack.made.cross.sum(axis=1)
    attack.target = attack.side.x[np.argsort(attack.side.x[:, 0])[-21]]
    attack.recovers((attack.gradient(one) + attack.gradient(other))[:, 0] - known)
    record = Record(attack.study.features, "north")
    answer(attack.study, attack.file(one), attack.party, record)
    attack.refused(other, record)
    answer(attack.study, attack.file(other), attack.party, Record(attack.study.features, "north"))  # alone it passes


def test_b_one_round_in_a_column_of_its_own():
    attack = Attack(c=3)
    slope, intercept = attack.above(FAR)
    third = attack.model([0, 0, slope], [0, 0, intercept])
    residual = attack.gradient(third)[:, 2] - attack.made.cross[:, 2]
    attack.recovers(-residual)
    attack.refused(third)


def test_c_a_temperature_that_hides_the_scores():
    attack = Attack()
    slope, intercept = attack.above(FAR)
    hidden = attack.model([-slope, 0], [-intercept, 0], temperature=1e12)
    known = attack.made.cross[:, 0] - attack.made.cross.sum(axis=1)
    attack.recovers(attack.gradient(hidden)[:, 0] - known)
    with pytest.raises(RefusedMessage, match="expected a model without a temperature"):
        answer(attack.study, attack.file(hidden), attack.party)


def test_two_columns_that_only_together_show_a_row():
    """Neither column is of few rows; their sum is 1/2 for all rows but one."""
    attack = Attack(c=4)
    slope, intercept = attack.above(FAR)
    spread = attack.model([1, -1, 1, slope - 1], [0, 0, 0, 0])
    weights = spread.weights.copy()
    weights[1] = [1, -1, 1, -1]
    weights[0] = [0, 0, slope, slope]
    model = replace(spread, weights=weights, intercept=np.array([0, 0, intercept, intercept]))
    scores = model.scores(attack.side.x)
    assert (scores[:, 2:].max(axis=1) < scores[:, :2].min(axis=1)).sum() == 59
    [weights] = logistic.weights_of(attack.side.x, attack.side.y, model)
    assert all(effective_rows(weights[:, [column]], attack.side.y) > 5 for column in range(2))
    attack.refused(model)


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0])
def test_a_small_difference_shows_as_much_as_a_large_one(size):
    """The second of two rounds has nearly the same model."""
    attack = Attack()
    record = Record(attack.study.features, "north")
    p = np.full((60, 1), 0.5)
    one = np.zeros((60, 1))
    one[7] = size / 4
    labels = attack.side.y
    assert effective_rows(p + one, labels, p) < 1.01
    assert effective_rows(p, labels, p) == np.inf
    slope, intercept = attack.above(40)
    low = attack.model([0, 0], [0, 0])
    answer(attack.study, attack.file(low), attack.party, record)
    attack.refused(attack.model([slope, 0], [intercept - 20, 0]), record)


def test_the_basis_is_the_studys_own():
    attack = Attack()
    own, model = attack.basis, attack.model([0, 0], [0, 0])
    wide = Basis.of({f"x{i}": ({"age": 1.0}, 0.0) for i in range(400_000)}, attack.study.sent)
    others = {
        "got 400000 of 3": wide,
        "got 2 of 3": Basis.of({"age": ({"age": 1.0}, 0.0), "bp": ({"bp": 1.0}, 0.0)}, attack.study.sent),
        "of other names, or in another order": replace(own, columns=("bp", "age", "crp")),
        "made of others": replace(own, rows=own.rows[[1, 0, 2]]),
        "standard deviations": replace(own, values=own.values * [1e-3, 1, 1]),
        "that columns in their ranges": replace(own, shift=own.shift * 1e6),
    }
    for words, basis in others.items():
        request = attack.file(model, basis=basis)
        with pytest.raises(Mismatch, match=words):
            answer(attack.study, request, attack.party)
    side = ClientSide(attack.party, classes=attack.study.classes, columns=attack.study.sent, study=attack.study)
    with pytest.raises(Mismatch, match="got 400000 of 3"):  # as a Flower node gets it
        side.enter("fedlogit", {"classes": None, "round": 0, "seed": 0, "step": "gradient", "basis": wide})


def test_scores_beyond_training_are_refused():
    attack = Attack()
    model = attack.model([2 * FARTHEST, 0], [0, 0])
    with pytest.raises(RefusedMessage, match="training cannot lead to"):
        answer(attack.study, attack.file(model), attack.party)


def test_a_changed_row_shows_in_the_difference():
    attack = Attack()
    record = Record(attack.study.features, "north")
    model = attack.model([1, 0], [0, 0])
    first = answer(attack.study, attack.file(model), attack.party, record)
    again = answer(attack.study, attack.file(model), attack.party, record)
    np.testing.assert_array_equal(first.reply["gradient"], again.reply["gradient"])
    assert len(record.answers) == 1
    x = attack.party.x.copy()
    x[5] = 0.1
    with pytest.raises(InvalidData, match="1 of the 60 samples of 'north' are others than in its earlier answers"):
        answer(attack.study, attack.file(model), replace(attack.party, x=x), record)
    shuffled = np.random.default_rng(0).permutation(60)
    answer(
        attack.study,
        attack.file(model),
        replace(attack.party, x=attack.party.x[shuffled], y=attack.party.y[shuffled]),
        record,
    )
    assert len(record.answers) == 1


def test_a_table_that_comes_back_but_for_a_row_is_compared_with_the_older_one():
    attack = Attack()
    record, model = Record(attack.study.features, "north"), attack.model([1, 0], [0, 0])
    answer(attack.study, attack.file(model), attack.party, record)
    x = attack.party.x.copy()
    x[:10, 1] = 0.1
    answer(attack.study, attack.file(model), replace(attack.party, x=x), record)
    x = attack.party.x.copy()
    x[5, 1] = 0.1
    with pytest.raises(InvalidData, match="1 of the 60 samples of 'north' are others than in its earlier answers"):
        answer(attack.study, attack.file(model), replace(attack.party, x=x), record)


def table_of(party, path, study):
    """Write a party's rows as a table."""
    rows = ["age,bp,crp,y"]
    for (age, bp, crp), label in zip(party.x, party.y, strict=True):
        rows.append(f"{60 * (age + 1)},{125 * (bp + 1)},{50 * (crp + 1)},{label}")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_record_outlives_the_process_and_stays_private(tmp_path):
    attack = Attack()
    path = table_of(attack.party, tmp_path / "north.csv", attack.study)
    first = attack.file(attack.model([0, 0], [0.5, 0]))
    with pytest.warns(Doubtful, match="no record yet of what 'north' has sent"):
        reply(attack.study, path, Party("north"), first, records=tmp_path)
    kept = record_path(tmp_path, attack.study.features, "north")
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.read_bytes()
    reply(attack.study, path, Party("north"), first, records=tmp_path)  # once more
    assert kept.read_bytes() == before
    with recording(kept, attack.study.features, "north") as record:
        assert len(record.answers) == 1
        # The second round alone passes, less the first it does not.
        own = np.random.default_rng(1).normal(size=(60, 1))
        one = np.zeros((60, 1))
        one[3] = 1e-3
        assert effective_rows(own, attack.side.y) > 5
        assert effective_rows(own + one, attack.side.y) > 5
        assert effective_rows(own + one, attack.side.y, own) < 1.1
    for damaged in (before[:-1], b"", b"x" * 100, before.replace(b"fedlogit", b"fedlogix")):
        kept.write_bytes(damaged)
        with pytest.raises(InvalidData, match="cannot be read as one; restore it from a copy"):
            reply(attack.study, path, Party("north"), first, records=tmp_path)
        assert kept.read_bytes() == damaged


def honest(parties, study, ridge, rounds=20):
    """Run FedLogit by rounds over parties with records, and return the number of different rounds answered."""
    joined = [ClientSide(party, classes=study.classes, columns=study.sent).moments() for party in parties]
    total = sum(joined[1:], joined[0])
    basis = study.basis_of(total)
    ascent = Logistic(basis.moments(total), ridge)
    records = [Record(study.features, party.name) for party in parties]
    for number in range(1, rounds + 1):
        asked = Round(number, "fedlogit", {}, basis, {"model": ascent.ahead, "leverage": ascent.leverage})
        request = fgm.read(fgm.encode("round", asked, study=study, party="coordinator"))
        said = [answer(study, request, *each).reply for each in zip(parties, records, strict=True)]
        ascent.climb(Said(**{name: sum(one[name] for one in said) for name in said[0]}))
    return min(len(record.answers) for record in records)


@pytest.mark.parametrize("ridge", ["auto", 1e-6])
@pytest.mark.parametrize("gap", [0.0, 2.0])
def test_honest_runs_pass(gap, ridge):
    study = study_of(2)
    parties = []
    for seed, name in enumerate(("north", "south", "east")):
        party = party_of(study, 120, seed, name)
        x = party.x.copy()
        x[:, 2] = np.clip(x[:, 2] / 3 + gap / 6 * (party.y == "ill"), -1, 1)
        parties.append(replace(party, x=x))
    assert 10 < honest(parties, study, ridge) <= 20  # once converged, rounds are the same


def test_honest_parties_of_one_class_pass():
    study = study_of(2)
    parties = []
    for seed, label in enumerate(study.classes):
        party = party_of(study, 120, seed, label)
        parties.append(replace(party, y=np.full(120, label)))
    assert 10 < honest(parties, study, "auto") <= 20


def test_random_features_of_few_are_refused(tmp_path):
    """A pooled mean just below the oldest, which it may be by the study: then half of the features are the oldest's."""
    attack = Attack()
    ages = np.sort(attack.party.x[:, 0])
    shift = attack.basis.shift.copy()
    steep = 1e4
    shift[0] = -steep * ages[-2:].mean()
    basis = replace(attack.basis, values=np.array([steep, *attack.basis.values[1:]]), shift=shift)
    asked = Round(1, "apfl", {"dim_primary": 8}, basis, None)
    request = fgm.read(fgm.encode("round", asked, study=attack.study, party="coordinator"))
    with pytest.raises(InvalidData, match=r"mostly be of 1\.0 of the 60 samples"):
        answer(attack.study, request, attack.party)


def test_a_party_is_told_of_random_features_that_show_one_sample_of_a_class():
    """Pooled means leave one sample of a class on one side: the class sums are of it. Honest means do so, too."""
    attack = Attack()
    x, y, column = attack.side.x, attack.side.y, 2
    below = np.argsort(x[:, column])
    k = next(
        k for k in range(4, 60) if np.bincount(y[below[:k]], minlength=2).min() == 1 and y[below[k]] == y[below[0]]
    )
    label = int(np.bincount(y[below[:k]], minlength=2).argmin())
    target = next(place for place in below[:k] if y[place] == label)
    middle, steep = x[below[k - 1 : k + 1], column].mean(), 1e4
    values, shift = attack.basis.values.copy(), attack.basis.shift.copy()
    values[column] *= steep
    shift[column] = steep * (shift[column] - middle)
    basis = replace(attack.basis, values=values, shift=shift)
    settings = {"dim_primary": 32, "seed": 5}
    request = fgm.read(
        fgm.encode("round", Round(1, "apfl", settings, basis, None), study=attack.study, party="coordinator")
    )
    with pytest.warns(Revealing, match=r"the one of the fewest samples is mostly of 1\.0") as caught:
        sums = answer(attack.study, request, attack.party).reply.cross[:, label]
    assert len(caught) == 1
    primary = fg.APFL(**settings).primary(3)
    projection = primary(np.eye(3)) - primary(-np.eye(3))
    of_one = projection[column] < 0  # the features for which relu keeps the samples below
    read, *_ = np.linalg.lstsq(projection[:, of_one].T, sums[of_one], rcond=None)
    made = ClientSide(attack.party, classes=attack.study.classes, columns=attack.study.sent, basis=basis).x
    np.testing.assert_allclose(read, made[target], rtol=1e-9)


def test_a_party_is_told_of_random_features_that_are_many_in_several_rounds():
    attack, record = Attack(), Record("", "north")

    def ask(seed):
        settings = {"dim_primary": 32, "seed": seed, "activation_primary": "sigmoid"}
        asked = Round(1, "apfl", settings, attack.basis, None)
        answer(
            attack.study,
            fgm.read(fgm.encode("round", asked, study=attack.study, party="coordinator")),
            attack.party,
            record,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error", Revealing)
        ask(0)
        ask(0)  # the same answer again reveals nothing new
    with pytest.warns(Revealing, match="sends sums of 60 samples in 64 columns"):
        ask(1)


def test_a_study_without_cells_protects_none(tmp_path):
    store = store_of(tmp_path, "north", "south", study=LOOSE)
    asked = fgm.read(advance(store, "fedlogit", {"rounds": 1}).data)
    assert answer(LOOSE, asked, client("north")).number == 1
    assert LOOSE.minimum_cell == 1


def fewest(x, y, parties):
    """Return the fewest rows of honest rounds at any party, alone and less an earlier one, and the range of scores."""
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), parties)
    c = int(y.max()) + 1
    joined = [fg.Moments.of(x[part], y[part], classes=c) for part in parts]
    ascent = Logistic(sum(joined[1:], joined[0]), "auto")
    earlier, alone, less, apart = [[] for _ in parts], [], [], 0.0
    for _ in range(20):
        model = ascent.ahead
        apart = max(apart, np.ptp(model.scores(x), axis=1).max())
        for part, before in zip(parts, earlier, strict=True):
            weights = np.concatenate(list(logistic.weights_of(x[part], y[part], model)))
            alone.append(effective_rows(weights, y[part]))
            less += [effective_rows(weights, y[part], other) for other in before]
            before.append(weights)
        ascent.climb(gradient(x, y, model, ascent.leverage))
    return round(min(alone), 1), round(min(less), 1), apart


# The table of docs/guides/consortium.md.
HONEST = {
    ("diabetes", 10): (10.1, 5.7),
    ("cancer", 4): (4.6, 2.9),
    ("iris", 3): (2.0, 1.8),
    ("wine", 3): (2.4, 2.4),
    ("digits", 5): (1.6, 1.3),
    ("cancer", 20): (1.1, 1.0),
}


@pytest.mark.parametrize(("name", "parties"), HONEST)
def test_of_how_few_rows_honest_rounds_are(name, parties):
    datasets = pytest.importorskip("sklearn.datasets")
    loaders = {"cancer": "load_breast_cancer"}
    x, y = getattr(datasets, loaders.get(name, f"load_{name}"))(return_X_y=True)
    alone, less, apart = fewest(x, (y > 140).astype(int) if name == "diabetes" else y, parties)
    assert (alone, less) == pytest.approx(HONEST[name, parties], abs=0.15)
    assert apart < FARTHEST / 1e4
