"""The passport shows a file's content, from the file alone."""

import csv
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedgram as fg
from fedgram.core.errors import RefusedMessage, Skipped
from fedgram.core.hashing import readable
from fedgram.exchange.format import fgm
from fedgram.exchange.pages.passport import Passport, passport_page
from fedgram.exchange.rounds.party_side import Party, summarize, summary_of
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
            what = f"{name} missing" if value == "" else f"sex={value}" if name == "sex" else "smoker=yes"
            if value == "" or name == "sex" or (name == "smoker" and value == "yes"):
                groups[what] = groups.get(what, 0) + 1
        if row["smoker"] == "no":
            groups["smoker=no"] = groups.get("smoker=no", 0) + 1
    assert passport.group == min((count, group) for group, count in groups.items())


def test_thresholds_and_signature(passport, path):
    assert passport.thresholds == (
        ("minimum_samples", 10, 60, True),
        ("minimum_cell", 3, passport.smallest, True),
        ("minimum_group", 3, passport.group[0], True),
        ("maximum_columns_per_row", 0.33, round(4 / 60, 4), True),
    )
    assert (passport.level, passport.dangers) == ("", ())
    assert passport.signer == key_of(0).public.text
    assert passport.signed == "fits, and the study lists this key"
    unsigned = Passport.of(fgm.read(summarize(Study.parse(TEXT), path, Party("north"))))
    assert "not signed" in unsigned.signer
    assert Passport.of(summary(Study.parse(TEXT), path)).signed == "fits; the study lists no key to compare it with"


def test_a_file_by_someone_else_has_no_passport(path):
    file = fgm.read(summarize(keyed_study(), path, Party("north", key_of(1))))
    with pytest.raises(RefusedMessage, match="someone else wrote it"):
        Passport.of(file)


def test_a_forged_signature_has_no_passport(path):
    study, moments = keyed_study(), summary(keyed_study(), path).payload
    data = fgm.encode(
        "summary", moments, study=study, party="north", samples=60, columns=study.sent, key=_Liar(key_of(1), key_of(0))
    )
    with pytest.raises(RefusedMessage, match="the signature does not fit"):
        Passport.of(fgm.read(data))


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
            moments.schema.__class__(moments.classes, moments.d, changed.features, columns=changed.sent),
            sums=moments._sums.copy(),
            counts=moments.counts.copy(),
            packed=moments.packed.copy(),
        )
        data = fgm.encode("summary", kind, study=changed, party="north", samples=60, columns=changed.sent)
        passport = Passport.of(fgm.read(data))
        assert not all(met for *_, met in passport.thresholds)
        assert any("NOT PASSED" in text for _, text in passport.facts())
        assert 'class="bad"' in passport_page(passport)


def test_few_samples_are_said_to_reveal_rows(tmp_path):
    study = Study.parse(
        TEXT.replace("minimum_samples = 10", "maximum_columns_per_row = 0\nminimum_samples = 0").replace(
            "cell = 3", "cell = 0"
        )
    )
    path = tmp_path / "few.csv"
    path.write_text(table(3, 5))
    few = Passport.of(fgm.read(summarize(study, path, Party("north"))))
    assert few.level == "red"
    assert any(danger.text.startswith("With 5 samples in 7 columns, single rows can") for danger in few.dangers)


def test_numeric_outcomes_have_no_classes(tmp_path):
    study = Study.parse(
        "[study]\nname = 'costs'\noutcome = 'cost'\n[columns.cost]\nkind = 'number'\n[columns.age]\nkind = 'number'\n"
    )
    path = tmp_path / "costs.csv"
    path.write_text("age,cost\n" + "".join(f"{k % 7},{k}\n" for k in range(30)))
    passport = Passport.of(fgm.read(summarize(study, path, Party("north"))))
    assert (passport.classes, passport.smallest, passport.group) == ({}, None, None)
    assert "Samples per class" not in passport_page(passport)
    assert "by class" not in passport_page(passport)
    assert "smallest class" not in passport_page(passport)
    assert "allows no missing values" in passport_page(passport)


def test_files_of_other_kinds_have_one_too():
    for kind in ("receipt", "certificate"):
        passport = Passport.of(fgm.read(fgm.encode(kind, {"said": "x"}, study="0f3a" * 16, party="coordinator")))
        assert passport.kind == kind
        assert "no sums" in passport.reveals[1]
    assert (
        "combined"
        in dict(
            Passport.of(fgm.read(fgm.encode("combined", {"x": 1}, study="0f3a" * 16, party="region"))).facts()
        ).values()
    )


def test_a_published_model_says_who_is_in_it():
    stored = Path(__file__).parent / "stored"
    passport = Passport.of(fgm.read(stored / "published.fgm"))
    assert (passport.study, passport.method, passport.contributors) == ("walks", "afl", ("north", "south"))
    assert ("contributors", "2: north, south") in passport.facts()
    own = Passport.of(fgm.read(stored / "personal.fgm"))
    assert (own.study, own.signed) == ("walks", "fits, and the study lists this key")
    assert "the party itself" in own.reveals[1]


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
        .replace('parties = ["north", "south", "east"]\n', "minimum_group = 0\n")
        .replace("[columns.age]", f"[columns.'{label}']")
    )
    path = tmp_path / "odd.csv"
    path.write_text(table(3).replace("age", label))
    text = passport_page(Passport.of(fgm.read(summarize(study, path, Party(name)))))
    assert "script" not in {tag for tag, _ in _Page(text).tags}
    assert "img" not in {tag for tag, _ in _Page(text).tags}
    assert "&lt;script&gt;" in text


def passport_of(tmp_path, lines, **limits):
    """Return the passports of a summary: of the file alone, and as the party sees it that has made it."""
    path, study = tmp_path / "north.csv", replace(Study.parse(TEXT), **limits)
    path.write_text("\n".join(lines) + "\n")
    data, found = summary_of(study, path, Party("north"), on_bad="skip")
    file = fgm.read(data)
    return Passport.of(file), Passport.of(file, found=found)


def levels(passport):
    return [(danger.level, danger.text) for danger in passport.dangers]


def test_a_person_who_can_be_read_is_red(tmp_path):
    lines = [line for line in table(3, 200).splitlines() if line.split(",")[4] or line.startswith("patient")]
    lone = [*lines, "P,50,4000,F,,ill"]
    for passport in passport_of(tmp_path, lone, minimum_group=0):
        assert passport.level == "red"
        assert levels(passport)[0] == (
            "red",
            "The values of one person can be read from this file: smoker missing (1 sample).",
        )
        assert passport.fields()["level"] == "red"
        assert passport.fields()["dangers"][0]["level"] == "red"
        page = passport_page(passport)
        assert '<div class="reveals red">' in page
        assert '<strong class="red">Red.</strong> The values of one person' in page
    for passport in passport_of(tmp_path, [*lone, "Q,51,4100,M,,well"], minimum_group=2):
        assert passport.level == "amber"
        assert "Sums of fewer than 3 persons can be read from this file: smoker missing (2 samples)." in [
            text for _, text in levels(passport)
        ]
        assert '<div class="reveals amber">' in passport_page(passport)
    for passport in passport_of(tmp_path, lines):
        assert (passport.level, passport.dangers) == ("", ())
        assert '<div class="reveals ">' in passport_page(passport)


def test_the_party_sees_what_combinations_single_out(tmp_path):
    """All persons but one belong to one of three kinds, and no two columns single out that one."""
    text = TEXT.split("[columns.age]")[0] + "".join(f"[columns.{name}]\nkind = 'flag'\n" for name in "abc")
    study = Study.parse(text.replace("minimum_cell = 3", "minimum_cell = 3\nminimum_group = 0"))
    rows = [[name == "abc"[k % 3] for name in "abc"] for k in range(60)] + [[False] * 3]
    lines = [
        ",".join("yes" if cell else "no" for cell in row) + f",{'iw'[k % 5 // 2 % 2]}" for k, row in enumerate(rows)
    ]
    path = tmp_path / "north.csv"
    path.write_text("a,b,c,diagnosis\n" + "\n".join(lines).replace(",i", ",ill").replace(",w", ",well") + "\n")
    data, found = summary_of(study, path, Party("north"))
    alone, party = Passport.of(fgm.read(data)), Passport.of(fgm.read(data), found=found)
    assert (alone.level, party.level) == ("amber", "red")
    assert "combinations of columns were not searched" in alone.dangers[0].text
    assert "a combination of" in party.dangers[0].text


def test_limits_that_the_study_changes_are_amber(tmp_path):
    lines = table(3, 200).splitlines()
    for limits, words in (
        ({"minimum_samples": 0}, "switches minimum_samples off"),
        ({"minimum_cell": 1, "minimum_group": 3}, "switches minimum_cell off"),
        ({"maximum_columns_per_row": 0.0}, "sets no limit of columns per sample"),
        ({"minimum_group": 1}, "allows groups of one person"),
    ):
        passport, _ = passport_of(tmp_path, lines, **limits)
        assert [(level, words in text) for level, text in levels(passport)] == [("amber", True)], limits
    few = passport_of(
        tmp_path, lines[:10], minimum_samples=5, minimum_group=0, minimum_cell=2, maximum_columns_per_row=1.0
    )
    said = [text for _, text in levels(few[0])]
    assert "It has 9 samples, and 10 are usual: the study asks for 5." in said
    assert "It has 0.44 columns per sample, and 0.33 is usual: the study allows up to 1." in said


def test_a_threshold_that_is_switched_off_has_not_passed(tmp_path):
    lines = [line for line in table(3, 200).splitlines() if line.endswith(("diagnosis", "ill"))]
    off = {"minimum_samples": 0, "minimum_cell": 1, "maximum_columns_per_row": 0}
    facts = dict(passport_of(tmp_path, [*lines, "P,50,4000,F,no,well"], **off)[0].facts())
    assert facts["smallest class"] == "1 sample"
    assert facts["minimum_samples"].startswith("switched off (0), ")
    assert facts["minimum_cell"] == "switched off (1), 1 found"
    assert facts["minimum_group"].startswith("switched off (1), ")
    assert facts["maximum_columns_per_row"].startswith("switched off (0), 0.0")
    said = levels(passport_of(tmp_path, [*lines, "P,50,4000,F,no,well"], **off)[0])
    assert ("amber", "It has 1 sample of a class, and 3 are usual: the study asks for 1.") in said


def test_rows_left_out_and_imputed_are_on_it(tmp_path):
    lines = table(3, 200).splitlines()
    bad = [line.replace(",F,", ",X,") if k % 50 == 0 else line for k, line in enumerate(lines)]
    wrong = sum(",X," in line for line in bad)
    with pytest.warns(Skipped):
        file, party = passport_of(tmp_path, bad)
    kept = [line.split(",") for line in bad[1:] if ",X," not in line]
    imputed = sum(cells[2] == "" or cells[4] == "" for cells in kept)  # without a sex is a level of its own
    assert wrong
    assert vars(party.rows) == {"used": 200 - wrong, "left_out": wrong, "dropped": 0, "imputed": imputed}
    assert f"200 read: {200 - wrong} used, {imputed} of them with a missing value" in dict(party.facts())["rows"]
    assert "200 read" in passport_page(party)
    assert file.rows is None
    assert file.fields()["rows"] is None
    assert party.fields()["rows"]["left_out"] == wrong
