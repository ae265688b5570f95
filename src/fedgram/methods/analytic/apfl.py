"""APFL: analytic personalized federated learning by dual-stream least squares."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import Mismatch, NotMoments, RefusedMessage
from fedgram.core.schema import Count, Natural, NotNegative, Positive
from fedgram.evaluation import MUCH
from fedgram.features.projection import Activation, RandomFeatures
from fedgram.heads import adapt
from fedgram.heads.least_squares import EXPECTED, Confidence, calibrated, least_squares
from fedgram.heads.likelihood import WORTHWHILE, Expert, Labels, best_weights
from fedgram.heads.system import System
from fedgram.models import BlockModel, Offsets, Temperature
from fedgram.moments.moments import Moments
from fedgram.protocol.byfiles import REMEDY, Joined
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Weighing
from fedgram.protocol.method import step
from fedgram.protocol.onemessage import OneMessage
from fedgram.protocol.pool import Pool
from fedgram.protocol.registry import register
from fedgram.protocol.replies import MomentsOf, Question

GAMMAS = np.geomspace(1e-3, 1e4, 29)
BETAS = np.geomspace(1e-2, 1e4, 25)


@wire.message("two-streams", version=1)
@dataclass(frozen=True, eq=False, kw_only=True)
class TwoStreams(BlockModel):
    """Scores Φ(x) G + λ Ψ(x) P — (14). The maps Φ and Ψ travel as their seeds; a global model has no second stream.

    `system` is the packed factor of ΦᵀΦ + γI where clients have asked for it. `leverage` is published only: how much a
    sample counts for its own score by G, on average.
    """

    primary: RandomFeatures
    refine: RandomFeatures | None = None
    weights: Annotated[Array, wire.Shape("p", "c")]
    own: Annotated[Array, wire.Shape("r", "c")] | None = None
    lam: float = 0.0
    features: str = ""
    system: Annotated[Array, wire.Shape("s")] | None = None
    columns: Columns = ()
    temperature: Temperature = None
    leverage: Annotated[float | None, wire.Later()] = None
    offsets: Offsets = None
    classes: Classes

    @property
    def width(self) -> int:
        """The number of scores of a sample."""
        return int(self.weights.shape[1])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """(d,)."""
        return (self.primary.dim_in,)

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of samples (n, d)."""
        rows = block.astype(np.float64)
        np.matmul(self.primary(rows), self.weights, out=out)
        if self.refine is not None and self.own is not None:
            out += self.lam * (self.refine(rows) @ self.own)

    def influence(self, x: Array) -> adapt.Influence:
        """Return the influence of samples x (n, d) on G, if they are among those that made it."""
        if self.system is None:
            raise Mismatch("the factor of the primary stream was not published, which needs exact=True at the server")
        return System(self.system, self.weights, self.classes).influence(self.primary(x))

    def check(self) -> None:
        """Refuse weights that do not fit their maps, and a leverage that cannot be."""
        super().check()
        if self.leverage is not None and not 0 <= self.leverage < 1:
            raise Mismatch(f"field 'leverage' must be at least 0 and less than 1, got {self.leverage}")
        for map_, weights in ((self.primary, self.weights), (self.refine, self.own)):
            if (map_ is None) != (weights is None) or (map_ and weights is not None and map_.dim_out != len(weights)):
                raise Mismatch(f"weights {np.shape(weights)} do not fit {map_}")  # type: ignore[arg-type]


@register
@dataclass(frozen=True, kw_only=True)
class APFL(OneMessage):
    """APFL — Fan et al. 2025 (not Deng et al. 2020): a pooled ridge on random features, refined by each client's own.

    The primary stream G, (2)–(10), is one ridge over all clients' Φ = σ(x R_P); the refinement P_k, (11)–(13),
    fits what it leaves over on a client's own Ψ = σ(x R_R); λ weighs it, (14). The projections come from `seed`
    and are never sent; the paper does not give their law, here it is normal with standard deviation 1/√d.

    The APFL of Deng et al. 2020, a mixture of a client's network with the global one, is another method, and is not in
    fedgram.

    "auto" takes γ by generalised cross-validation on the pooled moments. It takes β and λ per client by leave-one-out:
    those of least squared error, or another λ if left-out labels are more likely under it by more than chance. For d_P
    it takes the paper's 1024, or for more than 1024 features the next power of two.
    By default a client downloads only G. Its choice then takes too little account of G having seen its samples. With
    `exact` the samples are left out of G, too; this needs a download of d_P²/2 more numbers.

    Parameters
    ----------
    gamma : float or "auto"
        The ridge of the primary stream, γ in (2).
    beta : float or "auto"
        The ridge of a client's refinement, β in (11).
    lam : float or "auto"
        The weight of the refinement in the scores, λ in (14).
    dim_primary : int or "auto"
        The number of random features of the primary stream, d_P.
    dim_refine : int
        The number of random features of the refinement, d_R.
    activation_primary : str
        The activation σ of the primary stream's features.
    activation_refine : str
        The activation σ of the refinement's features.
    exact : bool
        Whether clients also download the primary stream's factor, to leave their samples out of G.
    seed : int
        The seed of both projections, R_P and R_R.

    """

    revision: ClassVar[int] = 3
    left_out_alone: ClassVar[int] = 0  # a model takes a second, with a thousand random features and `exact`
    personal = True
    numeric = True
    namesake = "the APFL of Deng et al. 2020"
    finds_columns = False  # its moments are of a projection, which must see standardised columns

    gamma: Positive | Literal["auto"] = "auto"
    beta: Positive | Literal["auto"] = "auto"
    lam: NotNegative | Literal["auto"] = "auto"
    dim_primary: Count | Literal["auto"] = "auto"
    dim_refine: Count = 1024
    activation_primary: Activation = "relu"
    activation_refine: Activation = "relu"
    exact: bool = False
    seed: Natural = 0

    def primary(self, d: int) -> RandomFeatures:
        """Return the map Φ of d features."""
        return self._maps(d)[0]

    def _maps(self, d: int) -> tuple[RandomFeatures, RandomFeatures]:
        # Fewer random features than features cost some points where samples are few, for any γ.
        width = max(1024, 1 << (d - 1).bit_length()) if self.dim_primary == "auto" else self.dim_primary
        primary = RandomFeatures(d, width, self.activation_primary, 2 * self.seed)
        return primary, RandomFeatures(d, self.dim_refine, self.activation_refine, 2 * self.seed + 1)

    # server
    def publish(self, pool: Pool) -> TwoStreams:
        """Solve the primary stream; the total is (6), (7)."""
        total, targets = pool.total, pool.targets
        problem = targets.regression(total, intercept=False)
        gamma = problem.cross_validated(GAMMAS) if self.gamma == "auto" else self.gamma
        primary = self.primary(*pool.shape)
        backbone = total.schema.features.removesuffix(primary.fingerprint)
        # G — (10)
        solved = (
            System.of(total, ridge=gamma, targets=targets)
            if self.exact
            else least_squares(total, gamma, targets, intercept=False)
        )
        # The leverage needs a decomposition, which is there if γ was chosen by cross-validation.
        known = self.gamma == "auto" and targets.has_classes
        return TwoStreams(
            primary=primary,
            weights=solved.weights,
            classes=targets.scored,
            features=backbone,
            system=solved.lower if isinstance(solved, System) else None,
            columns=solved.columns,
            temperature=solved.temperature,
            offsets=solved.offsets,
            leverage=problem.degrees_of_freedom(gamma) / problem.n if known else None,
        )

    def reveals(self, published: TwoStreams) -> str:
        """With `exact`, all of the total: S - γI, and SG."""
        return "Gram matrix and class sums of random features" if self.exact else ""

    def global_model(self, published: TwoStreams) -> TwoStreams:
        """Return the published model with its primary stream alone, without the parts for personalizing."""
        return replace(published, system=None, leverage=None)

    def without(self, published: TwoStreams, client: ClientSide) -> TwoStreams | None:
        """Return the primary stream of the other samples, if its factor was published."""
        if published.system is None:
            return None
        phi = published.primary(client.x.astype(np.float64))
        try:
            rest = System(published.system, published.weights, published.classes).without(phi, client.target_rows)
        except NotMoments:  # samples that were not in it, as of a corrected table
            return None
        return replace(published, system=rest.lower, weights=rest.weights)

    def left_out_changes(self, published: TwoStreams, client: ClientSide) -> tuple[Array, Array] | None:
        """Return the changes of scores by the mean leverage, if it was published."""
        if published.leverage is None:
            return None
        left_over = client.target_rows - published.scores(client.x.astype(np.float64))
        change = -left_over * published.leverage / (1 - published.leverage)
        return change, change

    # client
    @step(
        reply=lambda method, question: method.moments_of(question),
        weighs=Weighing(lambda method, client, _: method.random_features(client)),
        by_files=lambda reply, joined, method, _: check_features(reply, joined, method),
    )
    def summarize(self, client: ClientSide) -> Moments:
        """Return Φ_kᵀΦ_k and Φ_kᵀY_k — (3), (5), (6): moments of another map are of another kind."""
        primary, _ = self._maps(client.shape[0])
        features = client.data.features + primary.fingerprint
        return client.moments_of(lambda x: primary(x.astype(np.float64)), features=features)

    def random_features(self, client: ClientSide) -> Iterator[Array]:
        """Yield Φ_k in blocks: how much samples count in its sums."""
        primary = self.primary(*client.shape)
        for x in client.x_blocks:
            yield primary(x.astype(np.float64))

    def moments_of(self, question: Question) -> MomentsOf:
        """Return the kind of a client's moments."""
        primary = self.primary(*question.shape)
        return MomentsOf(primary.dim_out, question.features + primary.fingerprint)

    @step
    def personalize(self, client: ClientSide, published: TwoStreams) -> None:
        """Keep G with P_k and λ — (11)–(14)."""
        _, refine = self._maps(client.x.shape[1])
        x = client.x.astype(np.float64)
        targets, sure = client.target_rows, Confidence(published.temperature, published.offsets)
        left_over = targets - published.scores(x)
        psi = np.ascontiguousarray(refine(x).T)
        if self.beta != "auto" and self.lam != "auto":
            lam, own = self.lam, adapt.correction(psi, left_over, 1 / self.beta)  # P_k — (13)
        else:
            spectrum = adapt.Spectrum.of(psi)
            # Samples that G has never seen need no leaving out there.
            seen = published.influence(x) if self.exact and client.member else None
            beta, lam = self._chosen(spectrum, left_over, seen)
            own = spectrum.project(left_over).correction(1 / beta)
            if sure.temperature is not None:
                [predicted] = spectrum.predict_left_out(left_over, [1 / beta], seen)
                missing = left_over if seen is None else seen.left_out(left_over)
                if seen is None and client.member and published.leverage is not None:
                    # G has seen these samples, and errs more on others
                    missing, predicted = (part / (1 - published.leverage) for part in (missing, predicted))
                streams = targets - missing, predicted
                lam, sure = _weighed(*streams, client.y, lam, sure, free=self.lam == "auto")
        kept = replace(published, refine=refine, own=own, lam=lam, **sure._asdict())
        client.keep(self.global_model(kept))

    def _chosen(
        self, spectrum: adapt.Spectrum, left_over: Array, influence: adapt.Influence | None
    ) -> tuple[float, float]:
        """Return β and λ, where they are free those of least leave-one-out error."""
        target = left_over if influence is None else influence.left_out(left_over)
        candidates = []
        betas = BETAS if self.beta == "auto" else np.array([self.beta], dtype=np.float64)
        for beta, predicted in zip(
            betas.tolist(), spectrum.predict_left_out(left_over, 1 / betas, influence), strict=True
        ):
            # The error is quadratic in λ, so its least value is known.
            best = np.vdot(predicted, target) / max(np.vdot(predicted, predicted), np.finfo(float).tiny)
            lam = float(np.clip(best, 0.0, 1.0)) if self.lam == "auto" else self.lam
            candidates.append((float(np.mean((target - lam * predicted) ** 2)), beta, lam))
        _, beta, lam = min(candidates)
        return beta, lam


def _weighed(
    shared: Array, own: Array, labels: Labels, lam: float, expected: Confidence, *, free: bool
) -> tuple[float, Confidence]:
    """Return λ and the confidence for left-out samples' scores by the shared and by the own stream, (n, c) each.

    λ is that of least squared error. If it is `free` and another λ makes the labels more likely by more than chance, λ
    is that one: with many classes, squared error gives the own stream too much weight, because it also counts how well
    the own stream tells which classes are absent.
    """
    temperature, offsets = expected.temperature or EXPECTED, expected.offsets
    chosen = calibrated(shared + lam * own, labels, temperature, offsets)
    if free:
        sharpness = 1 / temperature
        experts = Expert(shared, sharpness, sharpness), Expert(own, 0.0, sharpness)
        of_shared, of_own = best_weights(experts, np.zeros_like(shared), labels).values.tolist()
        likely = 1.0 if of_own >= of_shared else of_own / of_shared
        found = calibrated(shared + likely * own, labels, temperature, offsets)
        if found.log_likelihood - chosen.log_likelihood > WORTHWHILE:
            lam, chosen = likely, found
    return lam, Confidence(chosen.temperature, chosen.offsets)


def check_features(reply: Moments, own: Joined, method: APFL) -> None:
    """Raise if samples with a party's moments cannot have these moments of random features.

    Numeric outcomes are among both moments, and must be the same in both.
    """
    own.check_counts(reply)
    inputs = len(own.moments.squares) - own.outcomes
    primary = method.primary(inputs)
    gram = own.moments.gram[:inputs, :inputs]
    largest = primary.largest_squares(gram, own.n, np.sqrt(own.noise[:inputs])) * MUCH
    found = reply.squares[: primary.dim_out]
    wrong = np.flatnonzero(~(found <= largest))
    if len(wrong):
        raise RefusedMessage(
            f"the sum of squares of random feature {wrong[0]} is {found[wrong[0]]:g}, and its own moments allow at "
            f"most {largest[wrong[0]]:g}: {REMEDY}"
        )
    own.check_outcomes(reply)
