"""Logistic and Poisson regression of all parties' rows, with standard errors, exactly, by Newton's method.

Each party sends three sums over its rows: the gradient Xᵀ(y - μ), the information XᵀWX and the log-likelihood, at the
coefficients of the round. They add up to those of the pooled rows, so each step is the one of the pooled rows.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.classes import Classes as Labels
from fedgram.core.columns import Columns, listed
from fedgram.core.errors import (
    InvalidData,
    InvalidParameter,
    Mismatch,
    NotConverged,
    RefusedMessage,
    Separated,
    UnknownName,
)
from fedgram.core.schema import Count, Positive
from fedgram.evaluation import MUCH
from fedgram.inference import newton
from fedgram.inference.linear import Solved, check_level, tabulated
from fedgram.inference.newton import HIGHEST, LOWEST, Classes, Counts, Family, Newton, Singular, Sums, predictors
from fedgram.inference.table import INTERCEPT, RATIOS, Coefficients, Kind
from fedgram.models import BlockModel, LinearModel, Model
from fedgram.moments import packing
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.moments.targets import Joint, NumericTargets, Targets
from fedgram.protocol import replies
from fedgram.protocol.byfiles import REMEDY, Joined, check_range
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Weighing
from fedgram.protocol.method import step
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Number, Numbers, Question
from fedgram.studies.kinds import model_terms
from fedgram.studies.loading import names_in
from fedgram.studies.missing_cells import notes_on_missing, with_means
from fedgram.studies.study import Study

Places = npt.NDArray[np.int64]
EPS = float(np.finfo(np.float64).eps)
LARGEST_COUNT = 1e8  # below e^`HIGHEST`
FARTHEST = 1e15  # of Pearson's statistic, which is beyond all bounds where a rate is nearly 0
WHOLE = 1e-6  # distance of a count from a whole number that rounding may have caused
DISPERSED = 1.5  # Pearson's statistic per degree of freedom beyond which counts vary more than Poisson's do
SLACK = MUCH - 1
CAPPED = exp(HIGHEST) * (1 - SLACK)  # a Σ μ that may have rows beyond `HIGHEST`
MOST = 1e60  # of a sum: products of two can still be computed with


@wire.message("regression-estimate", version=1)
@dataclass(frozen=True, eq=False)
class Estimate:
    """A fitted regression in the columns that the method sees, from which its table is made.

    Parameters
    ----------
    model : Model
        The model, which predicts.
    estimated : NDArray
        The places of the estimated coefficients among the columns, ascending, (k,); the intercept's is behind them.
    estimates : Array
        The coefficients, (k,).
    covariance : Array
        Their covariance, (k, k).
    n, rounds : int
        The numbers of rows and of rounds.
    log_likelihood, null_log_likelihood : float
        The log-likelihoods of the model, and of the intercept (and offset) alone.
    saturated : float
        The log-likelihood of a model with a parameter for each row.
    pearson : float or None
        Pearson's statistic, for counts.
    condition_number : float
        The ratio of the largest to the smallest singular value of the design in the study's units.

    """

    model: Model
    estimated: Annotated[Places, wire.Shape("k")]
    estimates: Annotated[Array, wire.Shape("k")]
    covariance: Annotated[Array, wire.Shape("k", "k")]
    n: int
    rounds: int
    log_likelihood: float
    null_log_likelihood: float
    saturated: float
    pearson: float | None
    condition_number: float

    @property
    def classes(self) -> Labels:
        """The classes of the model."""
        return self.model.classes

    @property
    def features(self) -> str:
        """The fingerprint of the features."""
        return self.model.features

    @property
    def columns(self) -> Columns:
        """The names of the columns that the method sees."""
        return self.model.columns

    def check(self) -> None:
        """Raise for places out of order, a matrix that is not a covariance, or figures that no rows have."""
        if not len(self.estimated) or self.estimated[0] < 0 or (np.diff(self.estimated) <= 0).any():
            raise Mismatch("field 'estimated' of an estimate must be ascending places from 0")
        if not (np.diag(self.covariance) > 0).all() or not np.array_equal(self.covariance, self.covariance.T):
            raise Mismatch("field 'covariance' of an estimate must be symmetric, with a positive diagonal")
        if self.n <= len(self.estimates):
            raise Mismatch(f"field 'n' of an estimate must be more than {len(self.estimates)}, got {self.n}")
        if not self.null_log_likelihood < 0:
            raise Mismatch(
                f"field 'null_log_likelihood' of an estimate must be less than 0, got {self.null_log_likelihood:g}"
            )


@wire.message("log-linear-model", version=1)
@dataclass(frozen=True, eq=False)
class LogLinear(BlockModel):
    """A model of counts: e^(x @ weights + intercept), in the units (count - centre) / unit of a study's outcome.

    Parameters
    ----------
    weights, intercept : Array
        The coefficients (d, 1) and (1,).
    centre, unit : Array
        The centre and the unit of the outcome, (1,).
    classes, features, columns
        As in a linear model.

    """

    weights: Annotated[Array, wire.Shape("d", "c")]
    intercept: Annotated[Array, wire.Shape("c")]
    centre: Annotated[Array, wire.Shape("c")]
    unit: Annotated[Array, wire.Shape("c")]
    classes: Labels
    features: str = ""
    columns: Columns = ()

    @property
    def width(self) -> int:
        """The number of scores of a sample."""
        return int(self.weights.shape[-1])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """(d,)."""
        return (len(self.weights),)

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of samples (n, d)."""
        eta = block.astype(np.float64, copy=False) @ self.weights + self.intercept
        np.divide(np.exp(np.minimum(eta, HIGHEST)) - self.centre, self.unit, out=out)

    def check(self) -> None:
        """Raise for a unit that is not positive."""
        super().check()
        if not (self.unit > 0).all():
            raise Mismatch("field 'unit' of a log-linear model must be more than 0")


class Term(NamedTuple):
    """A column that the method sees: (value - zero) · slope of a column in the study's units.

    `owner` is the study's column. `indicator` says whether values are 0 and 1 only, and `imputed` whether some may be
    means.
    """

    name: str
    owner: str
    slope: float
    at_zero: float  # what the method sees where the value is 0
    indicator: bool
    imputed: bool


def terms_of(study: Study | None, basis: Basis) -> list[Term]:
    """Return the columns that a method sees, in the units of the study, or of the samples without one."""
    if study is None:
        names = basis.columns or tuple(f"x{place}" for place in range(1, len(basis.shift) + 1))
        each = zip(names, basis.values.tolist(), basis.shift.tolist(), strict=True)
        return [Term(name, name, value, zero, indicator=False, imputed=False) for name, value, zero in each]
    features = basis.of_features
    sent = {name: place for place, name in enumerate(study.sent)}
    scale = {
        (place, row): value
        for place, row, value in zip(
            features.places.tolist(), features.rows.tolist(), features.values.tolist(), strict=True
        )
    }
    nothing = dict.fromkeys(study.sent, 0.0)
    found: list[Term] = []
    for owner, column in study.used.items():
        for term in () if owner in study.numeric_outcomes else model_terms(owner, column, nothing, 1.0):
            place, imputed = len(found), len(term.parts) > 1
            slope, zero = scale[place, sent[term.name]] / term.half, float(features.shift[place])
            indicator, at_zero = term.is_binary and not imputed, zero - slope * term.centre
            found.append(Term(term.name, owner, slope, at_zero, indicator=indicator, imputed=imputed))
    return found


class _Tangent(NamedTuple):
    """A client's sums at coefficients (p,), of which the gradient is the slope of the log-likelihood's tangent."""

    beta: Array
    sums: Sums

    def lies_below(self, other: "_Tangent") -> bool:
        """Return whether the log-likelihood is at most that of the other point's tangent, but for rounding."""
        apart, slope = self.beta - other.beta, other.sums.gradient
        slack = SLACK * (self.sums.size + other.sums.size + float(np.abs(slope) @ np.abs(apart)))
        return self.sums.log_likelihood <= other.sums.log_likelihood + float(slope @ apart) + slack


class Problem:
    """A regression at the server: the columns that have a coefficient, and Newton's method for these.

    Parameters
    ----------
    method : Generalized
        The method.
    total : Moments
        The pooled moments, in the columns that the method sees.
    targets : Targets
        The classes, or the numeric outcome.
    terms : list[Term]
        These columns, in the study's units.
    basis : Basis
        The basis that made these columns.
    features : str
        The fingerprint of the features.

    """

    def __init__(
        self, method: "Generalized", total: Moments, targets: Targets, terms: list[Term], basis: Basis, features: str
    ) -> None:
        self.method, self.terms, self.targets = method, terms, targets
        self._made_of = features, basis.columns
        joint, d, self.n = targets.joint(total), len(terms), total.n
        whole = np.empty((d + 1, d + 1))
        whole[:d, :d], whole[d, :d], whole[:, d] = packing.unpack(joint.packed, d), joint.sums, [*joint.sums, self.n]
        self.whole = whole
        self.outcomes, self.sum = method.outcome_sums(joint, targets)
        self.fixed, self._constant = method.fixed(terms)
        wanted = method.places(terms)
        about = np.outer(joint.sums, joint.sums) / self.n
        # A shifted column is a difference, whose rounding errors are those of the numbers subtracted.
        noise = EPS * (np.sqrt(np.diag(whole)[:d]) + 2 * sqrt(self.n) * np.abs(basis.shift)) ** 2
        scatter = np.zeros((len(wanted) + 1, len(wanted) + 1))
        scatter[:-1, :-1] = (whole[:d, :d] - about)[np.ix_(wanted, wanted)]
        scatter[-1, -1] = 1.0  # no outcome
        solved = Solved.of(scatter, np.append(noise[wanted], 0.0))
        self.aliased = [terms[wanted[place]].name for place in solved.aliased]
        self.estimated = np.array([*(wanted[place] for place in solved.kept), d], dtype=np.int64)
        if self.n <= len(self.estimated):
            raise InvalidData(
                f"rows: expected more than the {len(self.estimated)} coefficients of the model, got {self.n}; use "
                "fewer columns"
            )
        self._check_indicators()
        self.newton = self._begun()
        self._last: dict[str, _Tangent] = {}
        self.null: float | None = None if self.fixed.any() else method.family.null(self.sum, self.n)[1]

    def _begun(self) -> Newton:
        """Return Newton's method at the intercept alone, where moments tell all sums; an offset needs a round."""
        method, n = self.method, self.n
        beta = np.zeros(len(self.estimated))
        beta[-1] = method.family.link(self.sum / n) - self._constant
        found = Newton(beta, tolerance=method.tolerance)
        if not self.fixed.any():
            weight, log_likelihood = method.family.null(self.sum, n)
            gradient = (self.outcomes - self.sum / n * self.whole[-1])[self.estimated]
            information = weight * self.whole[np.ix_(self.estimated, self.estimated)]
            self._take(found, Sums(gradient, information, log_likelihood))
        return found

    def _check_indicators(self) -> None:
        """Raise if all rows with a level, or all without it, have one outcome: its coefficient would be infinite."""
        n, sums = self.n, self.whole[-1]
        counted: dict[str, tuple[float, float]] = {}
        levels: dict[str, list[str]] = {}
        for place in range(len(self.terms)):
            term = self.terms[place]
            if not term.indicator or not term.slope:
                continue
            rows = (sums[place] - n * term.at_zero) / term.slope
            outcome = (self.outcomes[place] - self.sum * term.at_zero) / term.slope
            counted[term.name] = float(np.rint(rows)), float(np.rint(outcome))
            levels.setdefault(term.owner, []).append(term.name)
        kept = {self.terms[place].name for place in self.estimated[:-1].tolist()}
        for owner, names in levels.items():
            if not kept.issuperset(names):
                continue
            rest = (n - sum(counted[name][0] for name in names), self.sum - sum(counted[name][1] for name in names))
            for name, (rows, outcome) in {**{name: counted[name] for name in names}, "": rest}.items():
                if 0.5 < rows < n - 0.5 and (one := self.method.one_outcome(rows, outcome)):
                    level = f"{name!r} is 1" if name else f"{names[0]!r} is 0"
                    where = f"{owner!r} has its first value" if not name and len(names) > 1 else level
                    raise separated([owner], f"all {rows:.0f} rows in which {where} {one}")

    def asked(self) -> dict[str, Any]:
        """Return the payload of the next round."""
        return {"coefficients": self._coefficients(self.newton.point), "estimated": self.estimated}

    def admit(self, client: str, reply: Mapping[str, Any]) -> None:
        """Raise for a client's reply that contradicts its last one: a log-likelihood is below each of its tangents."""
        now = _Tangent(self.newton.point, _sums(reply, len(self.estimated)))
        last = self._last.get(client)
        if last is not None and not (now.lies_below(last) and last.lies_below(now)):
            raise RefusedMessage(
                "reply/log_likelihood must change as reply/gradient says, got a change that no rows have; answer with "
                "the same rows in all rounds"
            )
        self._last[client] = now

    def take(self, told: Mapping[str, Any]) -> None:
        """Take the sums of a round; raise where they show that there is no maximum."""
        found = _sums(told, len(self.estimated))
        if self.null is None:
            # The first round was at the intercept alone: all rates times a factor are the best of these.
            expected = float(found.information[-1, -1])
            if expected >= CAPPED:
                raise InvalidData(
                    f"offset: expected exposures that differ by a factor of less than e^{HIGHEST:g} from their mean, "
                    "got larger ones; give the logarithm of the exposure, in a larger unit"
                )
            self.null = found.log_likelihood + self.sum * log(self.sum / expected) - (self.sum - expected)
        self._take(self.newton, found)
        if self.method.tells_all_apart(found.log_likelihood):
            raise self._separated(self.newton.solution, "they tell all rows of both classes apart")
        if self.newton.runs_away:
            assert self.newton.found is not None
            raise self._separated(self.newton.found.step, f"{self.method.runaway} along them")

    def _take(self, newton: Newton, found: Sums) -> None:
        try:
            newton.take(found)
        except Singular as error:
            raise self._separated(error.direction, "the rows say nothing about their coefficients") from None

    def _separated(self, direction: Array, why: str) -> Separated:
        """Return the error that names the columns of a direction: those that change linear predictors most."""
        spread = np.sqrt(np.maximum(np.diag(self.whole)[self.estimated] / self.n, 0.0))[:-1]
        moved = np.abs(direction[:-1]) * spread
        most = 0.1 * moved.max(initial=0.0)
        chosen = [place for place in np.argsort(-moved, kind="stable").tolist() if moved[place] > most]
        names = dict.fromkeys(self.terms[self.estimated[place]].owner for place in chosen)
        return separated(list(names), why)

    @property
    def model(self) -> Model:
        """The best model so far; at convergence with the last step."""
        assert self.newton.found is not None
        beta = self.newton.solution if self.newton.converged else self.newton.found.beta
        return self.method.model_of(self._coefficients(beta), self.targets, *self._made_of)

    def _coefficients(self, beta: Array) -> Array:
        """Return the coefficients of all columns and the intercept, (d + 1,)."""
        found = self.fixed.copy()
        found[self.estimated] += beta
        found[-1] += self._constant
        return found

    def estimate(self, rounds: int) -> Estimate:
        """Return the result, at convergence."""
        found = self.newton.found
        assert found is not None
        assert self.null is not None
        sums, to_units = found.sums, self.method.to_units(self.terms, self.estimated)
        back, gram = np.linalg.inv(to_units), self.whole[np.ix_(self.estimated, self.estimated)]
        largest = np.linalg.eigvalsh(back.T @ gram @ back)[-1]
        smallest = np.linalg.eigvalsh(to_units @ newton.inverse(gram) @ to_units.T)[-1]
        return Estimate(
            self.model,
            self.estimated,
            self.newton.solution,
            newton.inverse(sums.information),
            self.n,
            rounds,
            sums.log_likelihood - sums.constant,
            self.null - sums.constant,
            sums.saturated - sums.constant,
            sums.pearson or None,
            sqrt(float(largest * smallest)),
        )


def separated(columns: Sequence[str], why: str) -> Separated:
    """Return the error for coefficients that are infinite."""
    named = listed(columns) if columns else "the intercept"
    return Separated(
        f"columns: expected finite coefficients, got separation by {named}: {why}, so the likelihood rises for ever; "
        "leave it out with `columns`, join levels in the study, or use a method with a ridge, such as fedlogit"
    )


@dataclass(frozen=True, kw_only=True)
class Generalized(Publishing):
    """Base of regressions by Newton's method: a subclass names the family of the outcome and its bounds.

    Parameters
    ----------
    rounds : int
        The most rounds, each with one reply from every party; five to eight are usual.
    tolerance : float
        The length of Newton's step, in standard errors, at which the coefficients have converged.
    columns : str or None
        The study's columns of the model, with commas; "" for the intercept alone, None for all.

    """

    finds_columns = True
    kind: ClassVar[Kind]
    family: ClassVar[Family]
    runaway: ClassVar[str]  # the outcomes along separated columns

    rounds: Count = 25
    tolerance: Positive = 1e-9
    columns: str | None = None

    @property
    def shift_invariant(self) -> bool:
        """True: the intercept makes up for constants that are subtracted from columns."""
        return True

    # The family
    @abstractmethod
    def outcome_sums(self, joint: Joint, targets: Targets) -> tuple[Array, float]:
        """Return Xᵀy (d + 1,), the intercept's last, and Σ y; raise for outcomes that do not vary."""

    @abstractmethod
    def one_outcome(self, rows: float, outcome: float) -> str:
        """Return the one outcome of these rows, whose y add up to `outcome`, in words; "" if they have several."""

    @abstractmethod
    def model_of(self, coefficients: Array, targets: Targets, features: str, columns: Columns) -> Model:
        """Return the model with these coefficients (d + 1,), the intercept last."""

    @abstractmethod
    def outcome_blocks(self, client: ClientSide) -> Iterator[Array]:
        """Yield the outcomes y of a client's rows, in the blocks of `client.x_blocks`."""

    @abstractmethod
    def check_sums(self, found: Sums, question: Question, sizes: Array, reach: float) -> None:
        """Raise for sums that no rows can have.

        `sizes` (p,) are bounds of the roots of each column's squares, and `reach` of that of all linear predictors'.
        """

    @abstractmethod
    def check_own(self, found: Sums, own: "Own") -> None:
        """Raise for sums that no rows with a party's moments can have."""

    def fixed(self, terms: Sequence[Term]) -> tuple[Array, float]:
        """Return coefficients (d + 1,) that are not estimated, and a constant that is added to the intercept."""
        return np.zeros(len(terms) + 1), 0.0

    def tells_all_apart(self, log_likelihood: float) -> bool:
        """Return whether a log-likelihood proves that all rows can be told apart."""
        return False

    def places(self, terms: Sequence[Term]) -> list[int]:
        """Return the places of the columns that the model may have."""
        if self.columns is None:
            return list(range(len(terms)))
        owners = [term.owner for term in terms]
        wanted = names_in(self.columns) or ()
        for name in wanted:
            if name not in owners:
                raise UnknownName("column of the study", name, set(owners))
        return [place for place, owner in enumerate(owners) if owner in wanted]

    # server
    def serve(self, clients: Clients) -> Model:
        """Return the global model, after as many of Newton's steps as it takes."""
        problem, members = self._problem(clients, first=True), set(clients.names)
        for number in clients.rounds_of(self.rounds):
            if set(clients.names) != members:  # one has failed: the others begin anew, as if it had never been there
                problem, members = self._problem(clients), set(clients.names)
            told = clients.sum(self.likelihood, problem.asked(), admit=problem.admit)
            if set(clients.names) != members:
                continue
            problem.take(told)
            clients.report(number, problem.model)
            if problem.newton.converged:
                clients.message = problem.estimate(number + 1)
                return problem.model
        raise NotConverged(
            f"rounds: expected a step of at most {self.tolerance:g} standard errors after {self.rounds}, got one of "
            f"{problem.newton.decrements[-1]:.2g}; allow more rounds, or leave out columns that are nearly "
            "combinations of others"
        )

    def _problem(self, clients: Clients, *, first: bool = False) -> Problem:
        """Return the regression of the clients that are there, from their moments."""
        total = clients.sum(self.summarize, validate=first)
        agreement, study = clients.agreement, clients.agreement.study
        if study is None and first:
            made = standardising(total, agreement.basis, agreement.columns)
            shifted = 0.0 if agreement.basis is None else agreement.basis.shift * made.values
            total = replace(made, shift=made.shift - shifted).moments(total)
            agreement = replace(agreement, basis=made)
        clients.agreement = replace(agreement, squares=total.squares)
        targets, basis = clients.targets, clients.agreement.basis
        assert basis is not None
        terms = terms_of(study, basis)
        return Problem(self, total, targets, terms, basis.of_features, clients.features)

    def reveals(self, published: Estimate) -> str:
        """Return the pooled sums that the covariance tells."""
        return "sums of products of its rows, at the published coefficients"

    def global_model(self, published: Estimate) -> Model:
        """Return the model."""
        return published.model

    # client
    @step
    def summarize(self, client: ClientSide) -> Moments:
        """Return X_kᵀX_k and X_kᵀY_k."""
        return client.moments()

    @step(
        reply=lambda method, question: _Likelihood(method),
        weighs=Weighing(
            lambda method, client, asked: method.weights(client, asked),
            linear=True,
            products=lambda asked: asked["estimated"],
            terms=lambda method, client, asked: method.terms(client, asked),
        ),
        by_files=lambda reply, joined, method, asked: method.check_reply(reply, joined, asked),
    )
    def likelihood(self, client: ClientSide, asked: Any = None) -> dict[str, Any]:
        """Return the gradient, the information and the log-likelihood of the client's rows at coefficients."""
        _check_asked(asked, client.shape[0])
        found = newton.sums(self.family, self._rows(client), asked["coefficients"], asked["estimated"])
        return self.told(found)

    def told(self, found: Sums) -> dict[str, Any]:
        """Return sums as they are sent."""
        packed = packing.pack(np.tril(found.information))
        return {"gradient": found.gradient, "information": packed, "log_likelihood": found.log_likelihood}

    def weights(self, client: ClientSide, asked: dict[str, Any]) -> Iterator[Array]:
        """Yield the weights of rows in the gradient and in the information, (n, 2), in blocks."""
        for _, eta, y in predictors(self._rows(client), asked["coefficients"]):
            yield np.column_stack(self.family.weights(eta, y))

    def terms(self, client: ClientSide, asked: dict[str, Any]) -> Iterator[Array] | None:
        """Return the terms of a sum that a single row can dominate, (n,) in blocks; None if there is none."""
        return None

    def _rows(self, client: ClientSide) -> Iterator[tuple[npt.NDArray[Any], Array]]:
        return zip(client.x_blocks, self.outcome_blocks(client), strict=True)

    def check_reply(self, reply: dict[str, Any], joined: Joined, asked: dict[str, Any]) -> None:
        """Raise if no rows with a party's moments can give this reply to a round."""
        self.check_own(_sums(reply, len(asked["estimated"])), Own(joined, asked))

    @step
    def personalize(self, client: ClientSide, published: Estimate) -> None:
        """Keep the global model."""
        client.keep(self.global_model(published))

    # the table
    def to_units(self, terms: Sequence[Term], estimated: Places) -> Array:
        """Return the matrix (k, k) that takes coefficients of the method's columns to those in the study's units."""
        chosen = [terms[place] for place in estimated[:-1].tolist()]
        found = np.diag([*(term.slope for term in chosen), 1.0])
        found[-1, :-1] = [term.at_zero for term in chosen]
        return found

    def table(
        self, published: Estimate, *, study: Study | None, basis: Basis | None, level: float = 0.95
    ) -> Coefficients:
        """Return the regression table of a published estimate.

        Parameters
        ----------
        published
            The estimate.
        study, basis
            Those of the run.
        level
            The confidence level of the intervals.

        """
        if not isinstance(published, Estimate) or basis is None:
            raise Mismatch(f"message of a fit: expected an estimate of {self.name} with its basis, got another")
        if study is not None:
            study.check_basis(basis)
        terms = terms_of(study, basis)
        if published.estimated[-1] != len(terms):
            raise Mismatch(f"estimate: expected one of {len(terms)} columns, got {published.estimated[-1]}")
        places = np.roll(np.arange(len(published.estimated)), 1)  # the intercept first
        matrix = self.to_units(terms, published.estimated)
        estimates, covariance = matrix @ published.estimates, matrix @ published.covariance @ matrix.T
        chosen = [terms[place] for place in published.estimated[:-1].tolist()]
        rows, joint = tabulated(
            [INTERCEPT, *(term.name for term in chosen)],
            estimates[places],
            covariance[np.ix_(places, places)],
            {term.name: term.owner for term in chosen},
            df=None,
            level=check_level(level),
        )
        names = {term.name for term in chosen}
        aliased = tuple(terms[place].name for place in self.places(terms) if terms[place].name not in names)
        return Coefficients(
            self.kind,
            self.outcome_named(study, published.classes),
            "",
            "Maximum likelihood, Newton's method",
            "from the information",
            rows,
            joint,
            level,
            None,
            self.figures(published),
            aliased=aliased,
            notes=(*self.notes_of(published, aliased, study, {term.owner for term in chosen}),),
        )

    @abstractmethod
    def outcome_named(self, study: Study | None, classes: Labels) -> str:
        """Return the outcome as the table names it."""

    def figures(self, published: Estimate) -> dict[str, float]:
        """Return the figures of the whole model, in statsmodels' conventions."""
        k, n, reached = len(published.estimates), published.n, published.log_likelihood
        ratio = 2 * (reached - published.null_log_likelihood)
        found = {
            "n": float(n),
            "parameters": float(k),
            "df_residual": float(n - k),
            "pseudo_r_squared": 1 - reached / published.null_log_likelihood,
            "log_likelihood": reached,
            "null_log_likelihood": published.null_log_likelihood,
            "deviance": 2 * (published.saturated - reached),
            "null_deviance": 2 * (published.saturated - published.null_log_likelihood),
            "aic": 2 * k - 2 * reached,
            "bic": log(n) * k - 2 * reached,
            "condition_number": published.condition_number,
            "rounds": float(published.rounds),
        }
        if k > 1:
            found |= {"likelihood_ratio": ratio, "likelihood_ratio_p": float(special.chdtrc(k - 1, max(ratio, 0.0)))}
        if published.pearson is not None:
            found["dispersion"] = published.pearson / (n - k)
        return found

    def notes_of(
        self, published: Estimate, aliased: Sequence[str], study: Study | None, owners: set[str]
    ) -> Iterator[str]:
        """Yield notes that a reader of the table must know."""
        yield (
            f"{RATIOS[self.kind].capitalize()}s are e^coef. AIC and BIC are of the log-likelihood, with one parameter "
            "for each coefficient, as statsmodels has them."
        )
        if aliased:
            yield f"Left out as constant, or as combinations of earlier terms: {', '.join(aliased)}."
        if study is not None:
            yield from notes_on_missing(study, with_means(study, (name for name in study.used if name in owners)))
        yield (
            "Standard errors are right if the model is. Robust ones (HC) need one more message of d²/2 numbers from "
            "each party, and are not computed."
        )


def standardising(total: Moments, basis: Basis | None, columns: Columns) -> Basis:
    """Return the basis in which each column of the samples has mean 0 and a standard deviation of about 1.

    Columns are multiplied by powers of two, so that subtracting the mean is the only operation that rounds. `basis` is
    that of the moments: None, or the columns less a centre.
    """
    mean = total.cross.sum(axis=1) / total.n
    variance = total.squares / total.n - mean**2
    varies = variance > 64 * EPS * (total.squares / total.n)
    scale = np.where(varies, np.exp2(-np.rint(np.log2(np.where(varies, variance, 1.0)) / 2)), 0.0)
    places = np.arange(len(scale))
    centre = 0.0 if basis is None else -basis.shift
    return Basis(places, places, scale, -(centre + mean) * scale, columns, len(scale))


def _check_asked(asked: Any, width: int) -> None:
    """Raise for a request that `serve` does not make."""
    named: dict[str, Any] = asked if isinstance(asked, dict) else {}
    coefficients, places = named.get("coefficients"), named.get("estimated")
    is_right = (
        named.keys() == {"coefficients", "estimated"}
        and isinstance(coefficients, np.ndarray)
        and (coefficients.dtype, coefficients.shape) == (np.float64, (width + 1,))
        and bool(np.isfinite(coefficients).all())
        and isinstance(places, np.ndarray)
        and places.dtype == np.int64
        and 0 < places.size <= width + 1
        and places.ndim == 1
        and bool(places[0] >= 0 and places[-1] == width and (np.diff(places) > 0).all())
    )
    if not is_right:
        raise RefusedMessage(
            f"step 'likelihood': expected {width + 1} finite coefficients and the places of those that are estimated, "
            "got something else; ask for a round of logistic or poisson"
        )


def _sums(reply: Mapping[str, Any], p: int) -> Sums:
    """Return the sums in a reply."""
    return Sums(**{**reply, "information": packing.unpack(reply["information"], p)})


@dataclass(frozen=True)
class _Likelihood:
    """The kind of a reply to `likelihood`."""

    method: Generalized

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else, and sums that no rows have."""
        asked: Any = question.payload
        places, d, n = asked["estimated"], len(asked["coefficients"]) - 1, question.samples
        p = len(places)
        parts = self.method.told(Sums(np.zeros(p), np.zeros((p, p)), 0.0)).keys() - {"gradient", "information"}
        shapes = {"gradient": (p,), "information": (packing.size(p),)}
        kinds = {name: Numbers(shape, low=-MOST, high=MOST) for name, shape in shapes.items()}
        replies.check(value, kinds | dict.fromkeys(parts, Number()), question, where)
        found = _sums(value, p)
        squares = np.full(d, MOST) if question.squares is None else np.maximum(question.squares[:d], 0)
        lengths = np.sqrt(np.append(squares, n))
        coefficients = np.abs(asked["coefficients"])
        reach = float(lengths[coefficients > 0] @ coefficients[coefficients > 0])
        diagonal = np.diag(found.information)
        if (diagonal < 0).any() or _below_zero(found.information, diagonal):
            raise RefusedMessage(f"{where}/information must be positive semidefinite")
        try:
            self.method.check_sums(found, question, lengths[places], reach)
        except RefusedMessage as error:
            raise RefusedMessage(f"{where} must be sums over {n} rows: {error}") from error


def _below_zero(matrix: Array, sizes: Array) -> bool:
    """Return whether a symmetric matrix has an eigenvalue below 0 by more than rounding, relative to these sizes."""
    root = np.sqrt(np.where(sizes > 0, sizes, 1.0))
    return bool(np.linalg.eigvalsh(matrix / np.outer(root, root))[0] < -SLACK * len(root))


class Own:
    """A party's moments, in the columns of a round, and the coefficients that it was asked with."""

    def __init__(self, joined: Joined, asked: Mapping[str, Any]) -> None:
        d = len(joined.moments.squares) - joined.outcomes
        self.n, self.moments, self.targets = joined.n, joined.moments, joined.targets
        self.places: Places = asked["estimated"]
        self.coefficients: Array = asked["coefficients"]
        self.names = [*(joined.moments.schema.columns[:d]), "the intercept"]
        self.sums = np.append(joined.moments.cross[:d].sum(axis=1), joined.n)
        gram = np.block([[joined.moments.gram[:d, :d], self.sums[:-1, None]], [self.sums[None, :]]])
        # Elements off the diagonal are wrong by the root of the product of two of these, so all are by p of one.
        self.noise = np.append(joined.noise[:d], 8 * EPS * joined.n)
        self.gram = gram * MUCH + np.diag((d + 1) * self.noise)
        self.outcome_noise = joined.noise[d:]

    @property
    def lengths(self) -> Array:
        """Bounds of the roots of the squares of the estimated columns, (p,)."""
        return np.asarray(np.sqrt(np.diag(self.gram))[self.places])

    @property
    def squares(self) -> float:
        """The sum of squares of the linear predictors, and no less."""
        return max(float(self.coefficients @ self.gram @ self.coefficients), 0.0)

    def slack(self, size: float) -> float:
        """Return the rounding errors of a sum of the linear predictors times numbers with this root of squares."""
        return SLACK * size * sqrt(self.squares) + size * float(np.sqrt(self.noise) @ np.abs(self.coefficients))


def _check_each(what: str, names: Sequence[str], found: Array, low: Array, high: Array, rule: str) -> None:
    """Raise if a number of a party's reply is outside its bounds, with the column's name."""
    wrong = np.flatnonzero(~((low <= found) & (found <= high)))
    if len(wrong):
        place = int(wrong[0])
        raise RefusedMessage(
            f"the {what} of {names[place]!r} is {found[place]:g}, and its own moments allow {low[place]:g} to "
            f"{high[place]:g} ({rule}): {REMEDY}"
        )


@register
@dataclass(frozen=True, kw_only=True)
class Logistic(Generalized):
    """Logistic regression of two classes, with standard errors: that of all rows in one place, in some six rounds.

    Odds ratios, Wald and likelihood-ratio tests, as statsmodels' Logit has them. Columns along which no maximum exists
    (separation) are named.

    Parameters
    ----------
    event : str or None
        The class whose odds are modelled; None for the second class.

    """

    kind = "logistic"
    family = Classes()
    runaway = "all rows have one class"
    suits = "two classes"

    event: str | None = None

    def event_in(self, classes: Labels) -> int:
        """Return the place of the event among the classes; raise for other than two classes, or an unknown event."""
        if len(classes) != 2:
            raise InvalidParameter(
                f"classes: expected two for {self.name}, got {len(classes)}; describe an outcome with two classes in "
                "the study, or use a method for several, such as fedlogit"
            )
        names = [str(label) for label in classes]
        if self.event is not None and self.event not in names:
            raise UnknownName("class for `event`", self.event, names)
        return 1 if self.event is None else names.index(self.event)

    def outcome_sums(self, joint: Joint, targets: Targets) -> tuple[Array, float]:
        """Return the sums of the event's rows."""
        event = self.event_in(targets.classes)
        for label, count in zip(targets.classes, joint.target_sums.tolist(), strict=True):
            if not count:
                raise InvalidData(
                    f"class {label!r}: expected rows of both classes, got none of this one at any party; check how "
                    "the parties write it"
                )
        total = joint.target_sums[event]
        return np.append(joint.cross[:, event], total), float(total)

    def one_outcome(self, rows: float, outcome: float) -> str:
        """Return "have one class" if none or all of these rows are events."""
        return "have one class" if outcome < 0.5 or outcome > rows - 0.5 else ""

    def tells_all_apart(self, log_likelihood: float) -> bool:
        """Return whether no row is on the wrong side: each of these lowers the log-likelihood by log 2 or more."""
        return log_likelihood > -log(2) * (1 - SLACK)

    def model_of(self, coefficients: Array, targets: Targets, features: str, columns: Columns) -> LinearModel:
        """Return the model whose score is η for the event, and 0 for the other class."""
        weights = np.zeros((len(coefficients), 2))
        weights[:, self.event_in(targets.classes)] = coefficients
        return LinearModel(weights[:-1], targets.classes, weights[-1], features, columns)

    def outcome_blocks(self, client: ClientSide) -> Iterator[Array]:
        """Yield 1 for the event and 0 for the other class."""
        event = self.event_in(client.classes)
        for labels in client.y_blocks:
            yield (labels == event).astype(np.float64)

    def check_sums(self, found: Sums, question: Question, sizes: Array, reach: float) -> None:
        """Raise unless |y - μ| ≤ 1, μ(1 - μ) ≤ ¼ and log(1 + e^|η|) ≤ log 2 + |η|."""
        n = question.samples
        _check_sizes("gradient", found.gradient, sqrt(n) * sizes)
        _check_sizes("information", np.diag(found.information), sizes**2 / 4)
        lowest = -n * log(2) - sqrt(n) * reach
        if not lowest * MUCH <= found.log_likelihood <= 0:
            raise RefusedMessage(f"log_likelihood must be from {lowest:g} to 0, got {found.log_likelihood:g}")

    def check_own(self, found: Sums, own: Own) -> None:
        """Raise for sums that no rows with a party's moments can have.

        log(1 + e^-t) is convex, and at most log 2 - t/2 + t²/8, for the t = ±η of rows.
        """
        n, event = own.n, self.event_in(own.moments.classes)
        events = float(own.moments.counts[event])
        high = np.asarray(sqrt(n) * own.lengths * MUCH)
        low = -high
        low[-1], high[-1] = events - n - n * SLACK, events + n * SLACK
        names = [own.names[place] for place in own.places.tolist()]
        _check_each("gradient", names, found.gradient, low, high, "√n √Σx², since |y - μ| ≤ 1")
        quarter = own.gram[np.ix_(own.places, own.places)] / 4
        if _below_zero(quarter - found.information, np.diag(quarter)):
            raise RefusedMessage(f"the information is more than a quarter of its own XᵀX: {REMEDY}")
        cross = np.append(own.moments.cross[:, event], events)
        towards = float(own.coefficients @ (2 * cross - own.sums))  # Σ t
        slack = own.slack(sqrt(n))
        least = (towards - slack) / 2 - n * log(2) - own.squares / 8
        most = -n * float(np.logaddexp(0, -(towards + slack) / n))
        check_range("log_likelihood", found.log_likelihood, least, most, "by its own moments")

    def outcome_named(self, study: Study | None, classes: Labels) -> str:
        """Return the outcome and its event."""
        return f"{'class' if study is None else study.outcome} = {classes[self.event_in(classes)]}"


@register
@dataclass(frozen=True, kw_only=True)
class Poisson(Generalized):
    """Poisson regression of counts, with standard errors: that of all rows in one place, in some six rounds.

    Rate ratios, Wald and likelihood-ratio tests, as statsmodels' GLM has them. The study's outcome is a number.

    Parameters
    ----------
    offset : str or None
        The study's column with the logarithm of each row's exposure, whose coefficient is 1; None for equal exposures.

    """

    kind = "poisson"
    family = Counts()
    runaway = "all counts are 0"
    numeric = True
    suits = "counts"

    offset: str | None = None

    def places(self, terms: Sequence[Term]) -> list[int]:
        """Return the places of the columns that the model may have, without the offset."""
        found = super().places(terms)
        if self.offset is None:
            return found
        if self.columns is not None and any(terms[place].owner == self.offset for place in found):
            raise InvalidParameter(
                f"columns: expected columns besides the offset {self.offset!r}, got it among them; take it out"
            )
        return [place for place in found if terms[place].owner != self.offset]

    def fixed(self, terms: Sequence[Term]) -> tuple[Array, float]:
        """Return the offset's coefficient, 1 in the study's unit, and the constant that goes with it."""
        found, constant = super().fixed(terms)
        if self.offset is None:
            return found, constant
        places = [place for place, term in enumerate(terms) if term.owner == self.offset]
        if not places:
            raise UnknownName("column of the study", self.offset, {term.owner for term in terms})
        term = terms[places[0]]
        if len(places) > 1 or term.indicator or term.imputed:
            raise InvalidParameter(
                f"offset: expected a column of numbers that may not be missing, got {self.offset!r}; describe it with "
                "kind = 'number' and missing = 'refuse' or 'drop' in the study"
            )
        if not term.slope:
            raise InvalidParameter(
                f"offset: expected a column that varies, got {self.offset!r}, which has one value; leave the offset out"
            )
        found[places[0]] = 1 / term.slope
        return found, -term.at_zero / term.slope

    def outcome_sums(self, joint: Joint, targets: Targets) -> tuple[Array, float]:
        """Return the sums of counts; raise if all are 0."""
        numeric = _one_outcome(targets)
        centre, unit = float(numeric.centre[0]), float(numeric.unit[0])
        total = float(np.rint(joint.target_sums[0] * unit + joint.n * centre))
        if total < 0.5:
            raise InvalidData(
                f"outcome {numeric.names[0]!r}: expected counts that are not all 0, got {joint.n} zeros; choose another"
            )
        return np.append(joint.cross[:, 0] * unit + centre * joint.sums, total), total

    def one_outcome(self, rows: float, outcome: float) -> str:
        """Return "have count 0" if the counts add up to 0."""
        return "have count 0" if outcome < 0.5 else ""

    def model_of(self, coefficients: Array, targets: Targets, features: str, columns: Columns) -> LogLinear:
        """Return the model of the counts; it multiplies rates by the exposure that a row has."""
        numeric = _one_outcome(targets)
        weights = coefficients[:-1, None]
        return LogLinear(weights, coefficients[-1:], numeric.centre, numeric.unit, targets.scored, features, columns)

    def outcome_blocks(self, client: ClientSide) -> Iterator[Array]:
        """Yield counts; raise for other numbers."""
        targets = _one_outcome(client.targets)
        for rows in client.target_blocks:
            values = targets.as_outcomes(rows)[:, 0]
            counts = np.rint(values)
            bad = (np.abs(values - counts) > WHOLE) | (counts < 0) | (counts > LARGEST_COUNT)
            if wrong := int(bad.sum()):
                rule = f"outcome {targets.names[0]!r}: expected counts, whole numbers from 0 to {LARGEST_COUNT:g}"
                raise InvalidData(f"{rule}, got {wrong} other numbers; correct them, or use a linear model").telling(
                    f"{rule}, and this client has others"
                )
            yield counts

    def terms(self, client: ClientSide, asked: dict[str, Any]) -> Iterator[Array]:
        """Return y²/μ, which Pearson's statistic adds up besides Σ μ and Σ y: e^-η of the row with the lowest rate."""
        for _, eta, y in predictors(self._rows(client), asked["coefficients"]):
            yield np.square(y) * np.exp(-np.clip(eta, LOWEST, HIGHEST))

    def told(self, found: Sums) -> dict[str, Any]:
        """Return sums as they are sent, with those that counts need besides."""
        pearson = min(found.pearson, FARTHEST)
        return super().told(found) | {"constant": found.constant, "saturated": found.saturated, "pearson": pearson}

    def check_sums(self, found: Sums, question: Question, sizes: Array, reach: float) -> None:
        """Raise for sums that contradict each other, or the pooled squares of the counts.

        Xᵀμ is a column of the information, and with the gradient makes Xᵀy.
        """
        targets, n = _one_outcome(question.targets), question.samples
        centre, unit = float(targets.centre[0]), float(targets.unit[0])
        squares = MOST if question.squares is None else max(float(question.squares[-1]), 0.0)
        length = sqrt(n) * abs(centre) + unit * sqrt(squares)  # of y
        expected, diagonal = float(found.information[-1, -1]), np.diag(found.information)
        known = found.gradient + found.information[:, -1]
        rounding = SLACK * (np.abs(found.gradient) + np.sqrt(expected * diagonal) + n)
        _check_sizes("gradient and information", known, length * sizes + rounding)
        _check_sizes("information", diagonal, expected * sizes**2)
        if not -rounding[-1] <= known[-1]:
            raise RefusedMessage(f"counts must add up to 0 or more, got {known[-1]:g}")
        most = MUCH * length * reach + rounding[-1]
        least = -most - (expected * reach if expected >= CAPPED else 0.0)
        if not least <= found.log_likelihood + expected <= most:
            raise RefusedMessage(f"log_likelihood must be that of such counts, got {found.log_likelihood:g}")
        _check_figures(found, n, length**2)

    def check_own(self, found: Sums, own: Own) -> None:
        """Raise for sums that no rows with a party's moments can have.

        These moments have Xᵀy, so the gradient and Xᵀμ give each other, and so do Σ μ and the log-likelihood.
        """
        targets, n, moments = _one_outcome(own.targets), own.n, own.moments
        centre, unit, last = float(targets.centre[0]), float(targets.unit[0]), moments.d - 1
        sums = own.sums
        known = np.append(moments.gram[:last, last] * unit + centre * sums[:-1], 0.0)
        known[-1] = np.rint(float(moments.cross[last].sum()) * unit + n * centre)
        squares = max(float(moments.gram[last, last]) * unit**2 + 2 * centre * known[-1] - n * centre**2, 0.0)
        noise = unit * sqrt(float(own.outcome_noise[0])) + abs(centre) * sqrt(8 * EPS * n)
        length = sqrt(squares) + noise
        expected, diagonal = float(found.information[-1, -1]), np.diag(found.information)
        slack = own.lengths * (SLACK * length + noise) + np.sqrt(own.noise[own.places]) * length
        slack += SLACK * (np.abs(found.gradient) + np.sqrt(np.maximum(expected * diagonal, 0.0))) + WHOLE
        names = [own.names[place] for place in own.places.tolist()]
        wanted = known[own.places]
        found_sums = found.gradient + found.information[:, -1]
        rule = "Xᵀy in its summary"
        _check_each("gradient and information", names, found_sums, wanted - slack, wanted + slack, rule)
        reached = float(own.coefficients @ known) - expected
        room = own.slack(length) + noise * sqrt(own.squares) + slack[-1]
        # Beyond `HIGHEST` the log-likelihood is lower than these sums tell.
        lowest = reached - room if expected < CAPPED else min(reached - room, found.log_likelihood)
        check_range("log_likelihood", found.log_likelihood, lowest, reached + room, "by its own moments")
        mean = float(own.coefficients @ sums) / n
        lowest = n * exp(min(mean - own.slack(sqrt(n)) / n, HIGHEST)) if expected < CAPPED else 0.0
        if not expected >= lowest * (1 - SLACK):
            raise RefusedMessage(f"Σ μ is {expected:g}, and e^η is at least {lowest:g} by its own moments: {REMEDY}")
        _check_figures(found, n, length**2 * MUCH + WHOLE)

    def outcome_named(self, study: Study | None, classes: Labels) -> str:
        """Return the outcome, and its offset."""
        assert study is not None
        return study.outcomes[0] + (f", offset {self.offset}" if self.offset else "")

    def notes_of(
        self, published: Estimate, aliased: Sequence[str], study: Study | None, owners: set[str]
    ) -> Iterator[str]:
        """Yield notes, one of them on counts that vary too much."""
        yield from super().notes_of(published, aliased, study, owners)
        dispersion = self.figures(published).get("dispersion", 0.0)
        if dispersion > DISPERSED:
            yield (
                f"Counts vary {dispersion:.2g} times as much as Poisson's distribution allows (Pearson chi2 / df): "
                f"standard errors are too small by a factor of about {sqrt(dispersion):.2g}."
            )


def _check_sizes(what: str, found: Array, most: Array) -> None:
    """Raise for a number that is larger than its bound."""
    if len(wrong := np.flatnonzero(~(np.abs(found) <= most * MUCH))):
        place = int(wrong[0])
        raise RefusedMessage(f"{what} at {place} must be at most {most[place]:g}, got {found[place]:g}")


def _check_figures(found: Sums, n: int, squares: float) -> None:
    """Raise for sums of counts that contradict their squares: log y! ≤ y² and -1 ≤ y log y - y ≤ y²."""
    check_range("constant", found.constant, 0, squares, "Σ log y! ≤ Σ y²")
    check_range("saturated", found.saturated, -n, squares, "Σ y log y - y ≤ Σ y²")
    if not 0 <= found.pearson <= FARTHEST:
        raise RefusedMessage(f"'pearson' is {found.pearson:g}, and is a sum of squares: {REMEDY}")


def _one_outcome(targets: Targets | None) -> NumericTargets:
    """Return numeric targets of one outcome; raise for others."""
    if not isinstance(targets, NumericTargets):
        raise InvalidParameter(
            "outcome: expected counts for poisson, got classes; describe the outcome as a number in the study, or use "
            "logistic for two classes"
        )
    if len(targets.names) != 1:
        raise InvalidParameter(
            f"outcome: expected one column of counts, got {len(targets.names)}: {listed(targets.names)}; agree on a "
            "study with one of them"
        )
    return targets
