"""The passport says what is in a file, from the file alone."""

import csv
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedgram as fg
from fedgram.core.errors import RefusedMessage
from fedgram.core.hashing import readable
from fedgram.exchange import files
from fedgram.exchange.page import passport_page
from fedgram.exchange.passport import Passport
from fedgram.exchange.summaries import Party, summarize
from fedgram.studies import Study
from support.exchange import TEXT, key_of, keyed_study, summary, table, tables


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tables(tmp_path_factory.mktemp("tables"))["north"]


@pytest.fixture(scope="module")
def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def passport(path):
    return Passport.of(summary(keyed_study(), path))


def test_counts_are_those_of_the_table(passport, rows):
    assert passport.samples == len(rows) == 60
    assert passport.classes == {label: sum(row["diagnosis"] == label for row in rows) for label in ("ill", "well")}
    assert passport.smallest == min(passport.classes.values())
    found = {column.name: column.missing for column in passport.columns}
    assert found == {
        "age": None,
        "steps": sum(row["steps"] == "" for row in rows),
        "sex": sum(row["sex"] == "" for row in rows),
        "smoker": sum(row["smoker"] == "" for row in rows),
    }
    assert [column.kind for column in passport.columns] == ["number", "number", "category", "flag"]
    assert passport.columns[0].details == "0 to 120 years"


def test_the_smallest_group_that_can_be_read_off(passport, rows):
    groups = {}
    for row in rows:
        for name in ("sex", "smoker", "steps"):
            value = row[name]
            what = f"{name} missing" if value == "" else f"sex={value}" if name == "sex" else name
            if value == "" or name == "sex" or (name == "smoker" and value == "yes"):
                group = f"{row['diagnosis']}, {what}"
                groups[group] = groups.get(group, 0) + 1
    assert passport.group == min((count, group) for group, count in groups.items())


def test_thresholds_and_signature(passport, path):
    assert passport.thresholds == (
        ("minimum_samples", 10, 60, True),
        ("minimum_cell", 3, passport.smallest, True),
    )
    assert passport.signer == key_of(0).public.text
    assert passport.signed == "fits, and the study lists this key"
    unsigned = Passport.of(files.read(summarize(keyed_study(), path, Party("north"))))
    assert "not signed" in unsigned.signer
    assert Passport.of(summary(Study.parse(TEXT), path)).signed == "fits; the study lists no key to compare it with"


def test_a_file_by_someone_else_has_no_passport(path):
    file = files.read(summarize(keyed_study(), path, Party("north", key_of(1))))
    with pytest.raises(RefusedMessage, match="someone else wrote it"):
        Passport.of(file)


def test_a_forged_signature_has_no_passport(path):
    study, moments = keyed_study(), summary(keyed_study(), path).payload
    data = files.encode(
        "summary", moments, study=study, party="north", samples=60, columns=study.sent, key=_Liar(key_of(1), key_of(0))
    )
    with pytest.raises(RefusedMessage, match="the signature does not fit"):
        Passport.of(files.read(data))


class _Liar:
    """Signs with its own key and names another's."""

    def __init__(self, own, other):
        self.sign, self.public = own.sign, other.public


def test_thresholds_that_are_not_passed_are_shown(path):
    study = Study.parse(TEXT.replace("minimum_cell = 3", "minimum_cell = 59"))
    strict = Study.parse(TEXT.replace("minimum_samples = 10", "minimum_samples = 61"))
    moments = summary(Study.parse(TEXT), path).payload
    for changed in (study, strict):
        kind = fg.Moments(
            moments.kind.__class__(moments.classes, moments.d, changed.features, columns=changed.sent),
            sums=moments._sums.copy(),
            counts=moments.counts.copy(),
            packed=moments.packed.copy(),
        )
        data = files.encode("summary", kind, study=changed, party="north", samples=60, columns=changed.sent)
        passport = Passport.of(files.read(data))
        assert not all(met for *_, met in passport.thresholds)
        assert any("NOT PASSED" in text for _, text in passport.facts())
        assert 'class="bad"' in passport_page(passport)


def test_few_samples_are_said_to_reveal_rows(tmp_path):
    study = Study.parse(TEXT.replace("minimum_samples = 10", "minimum_samples = 0").replace("cell = 3", "cell = 0"))
    path = tmp_path / "few.csv"
    path.write_text(table(3, 5))
    few = Passport.of(files.read(summarize(study, path, Party("north"))))
    assert few.reveals[1].startswith("With no more samples than columns, single rows can be computed")


def test_numeric_outcomes_have_no_classes(tmp_path):
    study = Study.parse(
        "[study]\nname = 'costs'\noutcome = 'cost'\n[columns.cost]\nkind = 'number'\n[columns.age]\nkind = 'number'\n"
    )
    path = tmp_path / "costs.csv"
    path.write_text("age,cost\n" + "".join(f"{k % 7},{k}\n" for k in range(30)))
    passport = Passport.of(files.read(summarize(study, path, Party("north"))))
    assert (passport.classes, passport.smallest, passport.group) == ({}, None, None)
    assert "Samples per class" not in passport_page(passport)
    assert "lets no value be missing" in passport_page(passport)


def test_files_of_other_kinds_have_one_too():
    for kind in ("receipt", "certificate"):
        passport = Passport.of(files.read(files.encode(kind, {"said": "x"}, study="0f3a" * 16, party="coordinator")))
        assert passport.kind == kind
        assert "no sums" in passport.reveals[1]
        assert ("says said", "x") in passport.facts()
    assert (
        "combined"
        in dict(
            Passport.of(files.read(files.encode("combined", {"x": 1}, study="0f3a" * 16, party="region"))).facts()
        ).values()
    )


def test_a_published_model_says_who_is_in_it():
    stored = Path(__file__).parent / "stored"
    passport = Passport.of(files.read(stored / "published.fgm"))
    assert (passport.study, passport.method, passport.contributors) == ("walks", "afl", ("north", "south"))
    assert ("contributors", "2: north, south") in passport.facts()
    own = Passport.of(files.read(stored / "personal.fgm"))
    assert (own.study, own.signed) == ("walks", "fits, and the study lists this key")
    assert "the party itself" in own.reveals[1]


def test_what_a_coordinator_states_about_a_party_is_shown_and_signed_by_the_coordinator():
    said = {"digest": "ab", "samples": 3, "remaining": [f"d{k}" for k in range(7)], "does_not_state": "that it is gone"}
    data = files.encode("certificate", said, study=keyed_study(), party="north", key=key_of(9))
    facts = dict(Passport.of(files.read(data)).facts())
    assert facts["says remaining"] == "7: d0, d1, d2, d3, d4, …"
    assert facts["says does not state"] == "that it is gone"
    assert facts["says samples"] == "3"
    assert facts["signed by"] == key_of(9).public.text


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_whole_and_asks_for_nothing(passport):
    text = passport_page(passport)
    page = _Page(text)
    shown = " ".join(page.texts)
    for fact in ("north", readable(passport.fingerprint), passport.digest, passport.signer, *passport.reveals):
        assert fact in shown
    assert "Date, signature" in shown
    assert sum(tag == "svg" for tag, _ in page.tags) == 2
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert "http" not in text.replace("http-equiv", "")


def test_hostile_names_are_shown_as_text(tmp_path):
    name = '<script>alert("1")</script>'
    label = "<img src=x onerror=alert(1)>"
    study = Study.parse(
        TEXT.replace('name = "walks"', f"name = '{name}'")
        .replace('parties = ["north", "south", "east"]\n', "")
        .replace("[columns.age]", f"[columns.'{label}']")
    )
    path = tmp_path / "odd.csv"
    path.write_text(table(3).replace("age", label))
    text = passport_page(Passport.of(files.read(summarize(study, path, Party(name)))))
    assert "script" not in {tag for tag, _ in _Page(text).tags}
    assert "img" not in {tag for tag, _ in _Page(text).tags}
    assert "&lt;script&gt;" in text
