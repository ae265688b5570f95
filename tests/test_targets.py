"""A kind of target that is made up here, ordered levels, goes through a run without a change of fedgram."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import fedgram as fg
from fedgram.core import wire
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, Mismatch, RefusedMessage
from fedgram.evaluation import NumericErrors, Performance, mean_of
from fedgram.experiments.prepared import Prepared
from fedgram.models import Model
from fedgram.moments.targets import ClassTargets, NumericTargets, Targets
from fedgram.pipeline import Pipeline
from fedgram.protocol.clientside import ClientSide
from fedgram.studies import Study
from fedgram.studies.encoding import as_client
from fedgram.studies.kinds import Number
from fedgram.studies.loading import StudyDataset
from protocol.test_fit_files import save_with
from support.lying import Spoiled

GRADES = ("mild", "moderate", "severe", "critical")


@dataclass(frozen=True)
class LevelsApart(Performance):
    """The sum of the distances, in levels, between predictions and the truth over n test samples."""

    packed: ClassVar[str] = "apart"

    apart: int
    n: int

    def __add__(self, other: "LevelsApart") -> "LevelsApart":
        return LevelsApart(self.apart + other.apart, self.n + other.n)

    def sums(self) -> int:
        return self.apart

    @property
    def figure(self) -> float:
        return self.apart / self.n

    @classmethod
    def summary(cls, clients: Sequence["LevelsApart"]) -> dict[str, float]:
        return {"levels_apart": sum(each.apart for each in clients) / sum(each.n for each in clients)}

    @classmethod
    def report(cls, clients: Sequence["LevelsApart"]) -> dict[str, Any]:
        return {"accuracy": None, "levels": cls.summary(clients)}

    @classmethod
    def record(cls, clients: Sequence["LevelsApart | None"]) -> dict[str, Any]:
        return {"apart": [0 if each is None else each.apart for each in clients]}

    @classmethod
    def pack(cls, clients: Mapping[str, "LevelsApart"]) -> dict[str, Any]:
        return {"apart": {name: [each.apart, each.n] for name, each in clients.items()}}

    @classmethod
    def unpack(cls, fields: Mapping[str, Any]) -> dict[str, "LevelsApart"]:
        return {name: cls(*pair) for name, pair in fields["apart"].items()}

    @classmethod
    def check_packed(cls, name: str, fields: Any) -> None:
        if not all(apart >= 0 for apart, _ in fields["apart"].values()):
            raise RefusedMessage(f"{name}: expected distances of at least 0, got less")


@wire.message("ordered-levels", version=1)
@dataclass(frozen=True)
class Levels(Targets):
    """Ordered levels: a sample of level k has k ones, one for each threshold that it is above."""

    levels: Columns

    @property
    def classes(self) -> Classes:
        return self.levels

    @property
    def names(self) -> Columns:
        return ()

    def rows(self, truth: Any) -> Any:
        return (np.asarray(truth)[:, None] > np.arange(len(self.levels) - 1)).astype(np.float64)

    def _places(self, scores: Any) -> Any:
        return (scores > 0.5).sum(axis=1)

    def predict(self, scores: Any) -> Any:
        return np.asarray(self.levels)[self._places(scores)]

    def judge(self, model: Model, samples: Iterable[tuple[Any, Any]], *, least: int = 1) -> LevelsApart:
        found = [(int(np.abs(self._places(model.scores(x)) - truth).sum()), len(truth)) for x, truth in samples]
        return LevelsApart(*map(sum, zip(*found, strict=True)))

    def check_sums(self, sums: Any, n: int, where: str) -> None:
        if type(sums) is not int or not 0 <= sums <= n * (len(self.levels) - 1):
            raise RefusedMessage(f"{where}: expected a distance of {n} samples, got {sums!r:.40}")

    def performance(self, sums: Any, n: int) -> LevelsApart:
        return LevelsApart(sums, n)


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    found = []
    for k in range(3):
        x = rng.normal(size=(80, 4))
        grades = np.digitize(x @ [1.0, 0.5, 0.0, -0.5] + 0.2 * rng.normal(size=80), [-1.0, 0.0, 1.0])
        labels = np.array(GRADES)[grades]
        found.append(fg.Client(f"ward-{k}", x[:60], labels[:60], x_test=x[60:], y_test=labels[60:]))
    return found


def pooled(clients):
    x, labels = np.vstack([each.x for each in clients]), np.concatenate([each.y for each in clients])
    return np.column_stack([x, np.ones(len(x))]), np.array([GRADES.index(label) for label in labels])


def test_another_kind_is_fitted_predicted_and_evaluated(clients):
    fit = fg.AFL().fit(clients, classes=Levels(GRADES))
    x, places = pooled(clients)
    want = np.linalg.lstsq(x, Levels(GRADES).rows(places), rcond=None)[0]
    assert isinstance(fit.model, Pipeline)
    np.testing.assert_allclose(fit.model.model.weights, want[:-1], atol=1e-10)
    predicted = fit.model.predict(clients[0].x_test)
    assert set(predicted) <= set(GRADES)
    apart = [abs(GRADES.index(a) - GRADES.index(b)) for a, b in zip(predicted, clients[0].y_test, strict=True)]
    assert fit.evaluation.by_client["ward-0"] == mean_of(apart)
    assert fit.evaluation.summary()["levels_apart"] < 0.4
    assert fit.report()["levels"] == fit.evaluation.summary()


def test_another_kind_is_saved_personalized_and_left(clients, tmp_path, monkeypatch):
    fit = fg.FedHiP().fit(clients, classes=Levels(GRADES))
    fit.save(tmp_path / "fit.fedgram")
    again = fg.load(tmp_path / "fit.fedgram")
    assert again.evaluation == fit.evaluation
    np.testing.assert_array_equal(again.model.predict(clients[1].x), fit.model.predict(clients[1].x))
    save_with(fit, tmp_path / "wrong.fedgram", monkeypatch, evaluation={"apart": {"ward-0": [-1, 20]}, "tested": {}})
    with pytest.raises(RefusedMessage, match="distances of at least 0"):
        fg.load(tmp_path / "wrong.fedgram")
    own = again.personalize(clients[2])
    np.testing.assert_allclose(own.scores(clients[2].x), fit.personal["ward-2"].scores(clients[2].x), atol=1e-10)
    left = again.remove(again.summarize(clients[0]), name="ward-0")
    rest = fg.FedHiP().fit(clients[1:], classes=Levels(GRADES))
    np.testing.assert_allclose(left.model.scores(clients[0].x), rest.model.scores(clients[0].x), atol=1e-8)


def test_sums_that_cannot_be_fail_their_client_alone(clients):
    fit = fg.AFL().fit(clients, classes=Levels(GRADES), engine=Spoiled("evaluate", -1, "ward-0"))
    assert fit.evaluation.failed.keys() == {"ward-0"}
    assert fit.evaluation.by_client.keys() == {"ward-1", "ward-2"}


def test_a_method_that_needs_classes_refuses_another_kind(clients):
    with pytest.raises(InvalidParameter, match="expected names or a number of classes for fedlogit, got Levels"):
        fg.FedLogit().fit(clients, classes=Levels(GRADES))


def test_targets_of_a_study_are_its_own(clients):
    study = Study("grades", "grade", {"age": Number(range=(0, 120))}, GRADES)
    for targets, options in ((Levels(GRADES), {"study": study}), (NumericTargets.named("cost"), {})):
        with pytest.raises(InvalidParameter, match="are those that the study names"):
            fg.AFL().fit(clients, classes=targets, **options)
    asked = {"step": "summarize", "round": 0, "seed": 0, "classes": list(GRADES), "payload": None}
    for targets, options in ((Levels(GRADES), {"study": study}), (NumericTargets.named("cost"), {})):
        with pytest.raises(Mismatch, match="ask without targets"):
            ClientSide(clients[0], **options).enter("afl", asked | {"targets": targets})


def test_classes_and_numbers_are_such_kinds():
    scores = np.array([[0.2, 0.8], [0.6, 0.4]])
    assert ClassTargets(("ill", "well")).predict(scores).tolist() == ["well", "ill"]
    np.testing.assert_array_equal(ClassTargets(("ill", "well")).rows(np.array([1, 0])), [[0, 1], [1, 0]])
    both = NumericTargets(("cost", "stay"), np.array([500.0, 0.0]), np.array([250.0, 1.0]))
    np.testing.assert_allclose(both.as_outcomes(both.rows(scores)), scores)


@dataclass(frozen=True, kw_only=True)
class Twice(fg.AFL):
    """AFL that reports its model after each of two rounds."""

    def serve(self, clients):
        model = super().serve(clients)
        for number in clients.rounds_of(2):
            clients.report(number, model)
        return model


def test_rounds_are_evaluated_for_numbers_too_and_have_no_accuracies():
    study = Study("costs", "cost", {"age": Number(range=(0, 120)), "cost": Number(range=(0, 100))})
    rng, parties = np.random.default_rng(0), []
    for name in ("north", "south"):
        x, labels = rng.uniform(-1, 1, size=(30, 2)), np.zeros(30, dtype=np.int64)
        parties.append(as_client(study, name, x[:20], labels[:20], x_test=x[20:], y_test=labels[20:]))
    fit = Twice().fit(parties, study=study)
    assert [report.kind for report in fit.rounds] == [NumericErrors, NumericErrors]
    none = np.zeros(0, dtype=np.int64)
    data = StudyDataset("costs", np.zeros((0, 2)), none, study.schema.classes, "", study=study)
    assert Prepared(data, parties, 0, tested_by_clients=True).curves(Twice(), fit) == {}


def test_another_kind_has_a_model_and_no_evaluation_on_secure_sums(clients):
    plain, secure = (fg.AFL().fit(clients, classes=Levels(GRADES), secure=each) for each in (None, fg.Witnesses(2)))
    np.testing.assert_allclose(secure.model.model.weights, plain.model.model.weights, rtol=1e-11)
    assert not secure.evaluation
