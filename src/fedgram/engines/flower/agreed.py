"""A node under a study: what it has agreed to, and its own table as the columns that the study sends."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter, UnknownName
from fedgram.data.client import Client
from fedgram.data.own.bad import OnBad, check_on_bad
from fedgram.data.own.cells import Mask
from fedgram.engines.flower.config import App, NodeConfig
from fedgram.engines.flower.split import held_back, node_key
from fedgram.studies import Study, streams
from fedgram.studies.encoding import Rows, StudyTable, as_client, open_for
from fedgram.studies.identity import check_same
from fedgram.studies.loading import table_files
from fedgram.studies.streams import collect

REMEDY = "this node has agreed to the latter; agree on one file, and write the app anew with it"


def agreed_study(own: NodeConfig, app: App) -> Study | None:
    """Return the study that both the node and the run name, None where neither does; refuse a run of another one.

    The node reads its own file. A study says which rows are used and how they are encoded: if the run could choose it,
    the difference of two runs would show single rows.
    """
    if not own.study:
        if not app.study_fingerprint:
            return None
        raise InvalidParameter(
            "study: this run is of a study, and this node has agreed to none; whoever runs it can do so with "
            "--node-config 'study=\"study.toml\"'"
        ).telling()
    try:
        study = Study.read(Path(own.study).expanduser())
        fingerprint = study.fingerprint
    except FedgramError as error:
        raise error.telling("study: the node's own study file cannot be used") from None
    try:
        # The run's study is looked at only if its fingerprint is right, and then every word of it.
        whole = app.agreed if app.study_fingerprint == fingerprint else None
        check_same("study: the run", study, app.study_fingerprint, whole, remedy=REMEDY)
    except FedgramError as error:
        raise error.telling() from None
    if study.parties and own.client_name() not in study.parties:
        raise UnknownName("party of the study", own.client_name(), study.parties).telling()
    return study


def table_client(own: NodeConfig, study: Study) -> Client:
    """Return the node's table as a client of the study, with some rows held back for testing.

    What is held back is decided by the node's own key, or is in a table of its own, `test-data`.
    """
    given = {"label": own.label, "backbone": own.backbone, "num-partitions": own.num_partitions}
    if superfluous := [name for name, value in given.items() if value]:
        raise InvalidParameter(
            f"node-config: under a study a node has one table and the study says what its columns are: remove "
            f"{superfluous[0]}"
        ).telling()
    check_on_bad(own.on_bad)
    on_bad = cast("OnBad", own.on_bad)
    table = open_for(study, _only(own.data, "data"))
    if own.test_data:
        x, labels = collect(table, on_bad, held=streams.HELD_BYTES).samples()
        tested = open_for(study, _only(own.test_data, "test-data"))
        x_test, y_test = collect(tested, on_bad, held=streams.HELD_BYTES).samples()
    else:
        key = node_key(own.model_folder())

        def aside(rows: Rows) -> Mask:
            labels = [0] * len(rows.x) if rows.labels is None else rows.labels.tolist()
            return held_back(_content(table, rows), labels, own.test_fraction, key)

        found = collect(table, on_bad, held=streams.HELD_BYTES, aside=aside)
        (x, labels), (x_test, y_test) = found.split()
    return as_client(study, own.client_name(), x, labels, x_test=x_test, y_test=y_test)


def _content(table: StudyTable, rows: Rows) -> Any:
    """Return what decides on each row whether it is held back: never features of a backbone.

    Their last digits depend on which samples ran together: with one row more, others would change sides. Images and
    texts count as the cells that they are in the table.
    """
    if not rows.media:
        return rows.x
    made = {sent for name in table.media for sent in table.study.used[name].sent(name)}
    numbers = rows.x[:, [place for place, sent in enumerate(table.study.sent) if sent not in made]]
    cells = zip(*(column.tolist() for column in rows.media), strict=True)
    return np.array([json.dumps(row) for row in zip(numbers.tolist(), cells, strict=True)], dtype=np.str_)


def _only(data: str, what: str) -> Path:
    files = table_files(data)
    if len(files) != 1:
        raise InvalidData(f"{what} names {len(files)} tables: under a study a node has one").telling(
            f"{what}: under a study a node has one table"
        )
    return files[0]
