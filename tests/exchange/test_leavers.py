"""A party that has left checks its certificate against a published model, without the store."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import fedgram as fg
from fedgram.core.errors import Mismatch, RefusedMessage
from fedgram.exchange.format import fgm
from fedgram.exchange.pages.statement_page import statement_page
from fedgram.exchange.store.statements import Statement, check_forgotten
from fedgram.exchange.store.study_store import Store
from fedgram.secure.signing_keys import PrivateKey
from support.stores import EARLIER, KEYS, STUDY, Clock, store_of, summary

NAMES = ("north", "south", "east", "centre")
KEY, OTHER = PrivateKey.new(), PrivateKey.new()
NAMED = replace(STUDY, coordinator=KEY.public.text)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return south's certificate, and models from before, right after, later, and after its return."""
    folder = tmp_path_factory.mktemp("leavers")
    store = Store(folder / "store", study=NAMED, key=KEY, clock=Clock())
    about = {"study": NAMED, "created": EARLIER}
    store.join(*(summary(name, **about) for name in NAMES))
    models = {"before": store.publish("afl").data}
    store.remove("south", out=folder)
    models["after"] = store.publish("afl").data
    store.join(summary("west", **about))
    models["later"] = store.publish("afl").data
    store.join(summary("south", seed=5, **about))
    models["back"] = store.publish("afl").data
    models["certificate"] = (folder / "south-removed.fgm").read_bytes()
    models["receipt"] = next((folder / "store" / "receipts").glob("south*")).read_bytes()
    return {name: fgm.read(data, name=f"{name}.fgm") for name, data in models.items()}


def signed(file, payload, key=KEY, **about):
    """Return a file with another payload, signed with a key."""
    known = {"study": file.header.study, "party": file.header.party, "created": file.header.created} | about
    return fgm.read(fgm.encode(file.header.kind, payload, key=key, **known), name=file.name)


def with_ledger(file, key=KEY, **changes):
    fit = file.payload
    notes = {**fit.notes, "ledger": {**fit.notes["ledger"], **changes}}
    return signed(file, replace(fit, notes=notes), key)


def test_a_model_right_after_the_removal_has_its_total(files):
    found = check_forgotten(files["certificate"], files["after"], NAMED)
    assert found.wrong == ()
    assert found.right[0] == "Both files are signed by the coordinator of study 'walks'."
    assert (
        "The contribution of south (40 samples) was removed from the total of study 'walks' on 1 January 2026"
        in (found.right[1])
    )
    assert re.match(
        r"after.fgm, version 2 of the model, of .* UTC, was made after the removal \(entry 7\)\.", found.right[2]
    )
    assert "exactly the total after the removal" in found.right[3]
    assert found.right[3].endswith("south is not in it.")
    assert "all copies of the contribution were deleted" in found.not_proved[1]


def test_a_later_model_does_not_list_who_has_left(files):
    found = check_forgotten(files["certificate"], files["later"])
    assert found.wrong == ()
    assert "as the model says: give your own study" in found.right[0]
    assert "south is not among its 4 contributors: north, east, centre, west." in found.right[3]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("before", "was made before the removal (entry 5 of the ledger, the removal is entry 7)"),
        ("back", "lists south among its 5 contributors: south has joined again since"),
    ],
)
def test_a_model_with_the_party_is_told(files, name, wanted):
    found = check_forgotten(files["certificate"], files[name], NAMED)
    assert found.right == ()
    assert wanted in found.wrong[0]


def test_contradictions_are_told(files):
    certificate, after = files["certificate"], files["after"]
    before = files["before"].payload.notes["ledger"]["total"]
    stated = {
        "two different entries 7": with_ledger(after, head="0" * 64),
        "another total than the certificate": with_ledger(after, total="0" * 64),
        "made of the total before the removal": with_ledger(after, total=before, number=8),
        "lists south as a contributor, and has the total after": signed(
            after, replace(after.payload, contributors=("north", "south"))
        ),
        "does not say when it was published": signed(after, replace(after.payload, notes={})),
    }
    for wanted, model in stated.items():
        [wrong] = check_forgotten(certificate, model, NAMED).wrong
        assert wanted in wrong, wrong


def test_other_signers_studies_and_kinds_are_refused(files, tmp_path):
    certificate, after = files["certificate"], files["after"]
    told = {
        "names .* as its coordinator's: someone else": check_forgotten(
            signed(certificate, certificate.payload, OTHER), after, NAMED
        ),
        "is not signed": check_forgotten(signed(certificate, certificate.payload, None), after, NAMED),
        "is of study": check_forgotten(certificate, after, replace(NAMED, name="runs")),
    }
    plain = store_of(tmp_path / "a", *NAMES), store_of(tmp_path / "b", *NAMES)
    for store in plain:
        store.remove("south")
    one, other = (fgm.read(store.certificate("south"), name="c.fgm") for store in plain)
    told["are of two stores"] = check_forgotten(one, fgm.read(plain[1].publish("afl").data, name="m.fgm"))
    told["of two studies"] = check_forgotten(signed(certificate, certificate.payload, study="0" * 64), after)
    for wanted, found in told.items():
        assert re.search(wanted, found.wrong[0]), found
    right = check_forgotten(other, fgm.read(plain[1].publish("afl").data, name="m.fgm")).right
    assert right[0].endswith("Ask your coordinator whether this is its key.")
    for files_of in ((files["receipt"], after), (after, certificate)):
        with pytest.raises(Mismatch, match="expected a certificate file"):
            check_forgotten(*files_of)


@pytest.mark.parametrize("kind", ["receipt", "certificate"])
def test_a_statement_of_another_form_is_refused(files, kind):
    file = files[kind]
    for name, value in file.payload.items():
        for wrong in (None, 1.5, "x" if name != "party" and isinstance(value, int | list) else 7, [3]):
            with pytest.raises(RefusedMessage, match=f"expected the fields of a {kind}, got '{name}'"):
                Statement.of(signed(file, file.payload | {name: wrong}))
    with pytest.raises(RefusedMessage, match="got 'more'"):
        Statement.of(signed(file, file.payload | {"more": 1}))
    for name in ("party", "created"):
        with pytest.raises(RefusedMessage, match="and its header says"):
            Statement.of(signed(file, file.payload, **{name: {"party": "x"}.get(name, "2026-03-01T00:00:00Z")}))


class _Text(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.words = []
        self.feed(page)

    def handle_data(self, data):
        self.words.append(data)


def test_the_certificate_reads_like_one(files):
    statement = Statement.of(files["certificate"], NAMED)
    page = statement_page(statement)
    words = " ".join(" ".join(_Text(page).words).split())
    for text in (
        "Certificate of removal for south",
        "The contribution of south (40 samples) was removed from the total of study 'walks' on 1 January 2026 at 00:00",
        "3 contributions remained.",
        "Proves The coordinator has stated, with its signature",
        "Does not prove That all copies were deleted, or that no older model is in use.",
        "fits, and the study names this key as its coordinator's",
    ):
        assert text in words, text
    assert "Output check" not in page
    assert not [digest for digest in files["certificate"].payload["remaining"] if digest in page]
    assert "says " not in words
    fields = statement.fields()
    assert (fields["says"]["samples"], len(fields["says"]["remaining"])) == (40, 3)  # numbers and lists, not texts
    with pytest.raises(RefusedMessage, match="someone else wrote it"):
        Statement.of(signed(files["certificate"], files["certificate"].payload, OTHER), NAMED).fields()


def test_names_are_escaped(tmp_path):
    store = store_of(tmp_path / "store", "<script>alert(1)</script>", "south")
    store.remove("<script>alert(1)</script>")
    page = statement_page(Statement.of(fgm.read(store.certificate("<script>alert(1)</script>"))))
    assert "<script" not in page


def test_a_region_is_told_that_its_parties_have_names_of_their_own(tmp_path):
    parties = {name: KEYS[name].public.text for name in ("north", "south", "east", "west")}
    study = replace(STUDY, parties=parties, regions=("west",))
    region = Store(tmp_path / "region", study=study, key=KEYS["west"])
    region.join(summary("north", study=study, key=KEYS["north"]))
    store = fg.Store(tmp_path / "store", study=study)
    store.join(region.combine("west"), *(summary(name, study=study, key=KEYS[name]) for name in ("south", "east")))
    store.remove("west", out=tmp_path)
    store.join(summary("north", seed=2, study=study, key=KEYS["north"]))
    found = check_forgotten(fgm.read(tmp_path / "west-removed.fgm"), fgm.read(store.publish("afl").data), study)
    assert found.right[-1].endswith("Parties of a region are listed by their own names: look for yours.")
