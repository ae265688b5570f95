"""A model that says which class mean a sample's features are nearest to, on the unit sphere."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import Mismatch
from fedgram.core.labels import Classes
from fedgram.nets.factories import is_admitted
from fedgram.nets.layers import Shape, Vector
from fedgram.nets.model import NetModel, outputs
from fedgram.nets.prototypes import class_means, class_sums, on_sphere
from fedgram.nets.vector import Net

NEVER = -1e30  # the score of a class without a mean


@wire.message("nearest-prototype", version=1)
@dataclass(frozen=True, eq=False)
class NearestPrototype(NetModel):
    """A network whose features z, brought to length one, are compared with class means C; its head is not used.

    The score of a class is z·C - ½‖C‖², which is highest for the nearest mean. A class that is not `known` never wins.
    """

    network: str
    shape: Shape
    classes: Classes
    vector: Annotated[Vector, wire.Shape("p")]
    prototypes: Annotated[Vector, wire.Shape("c", "w")]
    known: Annotated[npt.NDArray[np.bool_], wire.Shape("c")]
    features: str = ""
    columns: Columns = ()

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit; a network that this process does not trust is not imported for that."""
        if not is_admitted(self.network):
            return
        wanted = (len(self.classes), self.net.features)
        if np.shape(self.prototypes) != wanted:
            raise Mismatch(
                f"{self.network!r} needs class means of shape {wanted} here, got {np.shape(self.prototypes)}"
            )

    @classmethod
    def of(
        cls,
        net: Net,
        vector: Vector,
        x: npt.NDArray[Any],
        y: npt.NDArray[np.int64],
        classes: Classes,
        features: str = "",
    ) -> "NearestPrototype":
        """Return the model with the means of these samples; it knows the classes that they have."""
        sums, counts = class_sums(net, vector, x, y, unit=True)
        means = class_means(sums, counts).astype(np.float32)
        own = np.array(vector)  # a row of many would keep them all in memory
        return cls(net.network, net.shape, classes, own, means, counts > 0, features)

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples."""
        [(features, _)] = outputs(self.net, self.vector, block)
        means = self.prototypes.astype(np.float64)
        out[:] = on_sphere(features.astype(np.float64)) @ means.T - 0.5 * np.square(means).sum(axis=1)
        out[:, ~self.known] = NEVER
