"""Parquet files."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import BadSamples, FedgramError, InvalidData
from fedgram.core.extras import require
from fedgram.data.own.bad import OnBad, Reason, check_expansion
from fedgram.data.own.tables import Cells, Roles, Table, Wanted, table_of


def read_parquet(path: Path, wanted: Wanted, on_bad: OnBad) -> Table:
    """Read a Parquet file whose feature columns are numbers."""
    pa, pq = (require(name, "tables", "reading Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    try:
        with path.open("rb") as raw, pq.ParquetFile(raw) as file:
            schema = file.schema_arrow
            roles = Roles.of(schema.names, wanted, path)
            for i in roles.features:
                if not (pa.types.is_integer(schema.types[i]) or pa.types.is_floating(schema.types[i])):
                    remedy = "" if roles.label is not None else ", or if it is the label, say so (--label)"
                    kind = f"column {roles.names[i]!r} of {path} holds {schema.types[i]}"
                    raise BadSamples(f"{kind}, not numbers: drop it or encode it{remedy}").telling(
                        f"column {roles.names[i]!r} must hold numbers"
                    )
            used = [*roles.features, *roles.texts]
            check_expansion(file.metadata.num_rows * 8 * len(used), path)
            arrow = file.read(columns=[schema.names[i] for i in used])
            x = np.empty((len(arrow), len(roles.features)))
            for j in range(len(roles.features)):
                x[:, j] = arrow.column(j).to_numpy()  # nulls become NaN
            texts = {i: _texts(arrow.column(len(roles.features) + k)) for k, i in enumerate(roles.texts)}
    except FedgramError:
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InvalidData(f"{path} is not a Parquet file that can be read ({reason}): write it again") from error
    labels, clients = (None if place is None else texts[place] for place in (roles.label, roles.client))
    cells = Cells(x, labels, clients, lambda bad: [_why_bad(x[i], roles).at(f"row {i + 1}") for i in bad])
    return table_of(cells, roles, path, on_bad)


def _texts(column: Any) -> list[str]:
    return ["" if value is None else str(value) for value in column.to_pylist()]


def _why_bad(row: npt.NDArray[np.float64], roles: Roles) -> Reason:
    for value, name in zip(row, roles.columns, strict=True):
        if not np.isfinite(value):
            what = "empty or NaN" if np.isnan(value) else value
            return Reason(f"column {name!r} is {what}", f"column {name!r} must be finite")
    return Reason("label or client is empty", "label and client must not be empty")
