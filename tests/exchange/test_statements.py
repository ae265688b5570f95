"""Receipts and certificates are compared with the ledger field by field: false ones are detected."""

import pytest

from fedgram.core.errors import FedgramError
from fedgram.exchange.format import fgm
from fedgram.exchange.store.verification import check_statement, verify
from support.stores import STUDY, store_of

OTHER = {  # another value of the same kind, so that only the comparison detects it
    str: lambda value: "0" * len(value) if set(value) <= set("0123456789abcdef") else f"{value}.",
    int: lambda value: value + 1,
    list: lambda value: value[1:],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store after south's removal."""
    store = store_of(tmp_path_factory.mktemp("statements") / "store", "north", "south", "east")
    store.remove("south")
    return store


def stated(store, kind):
    data = (
        store.certificate("south") if kind == "certificate" else next(store.path.glob("receipts/north*")).read_bytes()
    )
    return fgm.read(data)


def forged(store, file, told, **header):
    """Return a file with other values, signed with the coordinator's key."""
    known = {"study": STUDY.fingerprint, "party": file.header.party, "created": file.header.created} | header
    return fgm.read(fgm.encode(file.header.kind, told, key=store.key, **known))


def fields(kind):
    common = ["party", "digest", "samples", "time", "number", "head"]
    more = {"receipt": ["what"], "certificate": ["before", "after", "remaining", "proves", "does_not_prove"]}
    return [(kind, name) for name in common + more[kind]]


@pytest.mark.parametrize(("kind", "name"), fields("receipt") + fields("certificate"))
def test_every_field_is_compared(store, kind, name):
    file = stated(store, kind)
    assert sorted(file.payload) == sorted(name for _, name in fields(kind))
    check_statement(store, forged(store, file, file.payload))
    value = file.payload[name]
    lost = {key: kept for key, kept in file.payload.items() if key != name}
    changed = [OTHER[type(value)](value), str(value) if isinstance(value, int) else 1, None, [value]]
    if isinstance(value, int):
        changed.append(float(value))
    for told in (lost, *({**file.payload, name: each} for each in changed)):
        with pytest.raises(FedgramError, match=f"says {name} |no head of a ledger|no entry with the head"):
            check_statement(store, forged(store, file, told))


@pytest.mark.parametrize("kind", ["receipt", "certificate"])
@pytest.mark.parametrize(
    "header",
    [
        {"party": "east"},
        {"created": "2020-01-01T00:00:00Z"},
        {"samples": 40},
        {"columns": ("age",)},
        {"study": "0" * 64},
    ],
    ids=lambda header: next(iter(header)),
)
def test_the_header_is_compared(store, kind, header):
    file = stated(store, kind)
    with pytest.raises(FedgramError, match=r"says header's|in its header|is of study"):
        check_statement(store, forged(store, file, file.payload, **header))


def test_more_than_an_entry_says_is_refused(store):
    file = stated(store, "certificate")
    with pytest.raises(FedgramError, match="says note true"):
        verify(store, forged(store, file, file.payload | {"note": "true"}))


def test_a_receipt_is_not_taken_for_a_certificate(store):
    receipt, certificate = stated(store, "receipt"), stated(store, "certificate")
    for kind, told in (("certificate", receipt.payload), ("receipt", certificate.payload)):
        data = fgm.encode(kind, told, study=STUDY.fingerprint, party=told["party"], created=told["time"], key=store.key)
        with pytest.raises(FedgramError, match="does not record such a change"):
            check_statement(store, fgm.read(data))
