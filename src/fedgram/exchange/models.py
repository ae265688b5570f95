"""Models in files, exchanged ones among them."""

import os
from pathlib import Path

from fedgram.core.errors import InvalidParameter
from fedgram.exchange.opening import is_exchanged
from fedgram.exchange.summaries import fit_of, received
from fedgram.models import Model
from fedgram.protocol.fit import load_model
from fedgram.studies.model import StudyModel


def model_of(path: str | os.PathLike[str], client: str | None = None) -> Model:
    """Return the model of a file: of an `.fgm` file of kind global or personal, or of any that `load_model` reads.

    The signature of an exchanged file must fit; one without is warned of.
    """
    if not is_exchanged(path):
        return load_model(path, client)
    if client is not None:
        raise InvalidParameter(f"{os.fspath(path)} holds one model: leave out the client {client!r}")
    file = received(Path(path)).of_kind("global", "personal")
    if file.header.kind == "personal":
        return file.holding(StudyModel)
    fit, _ = fit_of(file)
    return fit.predictor()
