"""The page of descriptives as a reader sees it, in a real browser."""

import re

import pytest

from fedgram.exchange.pages.descriptives_page import descriptives_page
from fedgram.exchange.store.ledger import Entry
from fedgram.report.result_tables import Entry as Cell
from fedgram.report.result_tables import Table
from fedgram.studies import Study
from fedgram.studies.kinds import Number
from support.browser import browser, console_errors, prefer, resize
from support.page import contrasts, texts

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
HOSTILE = "<script>alert(1)</script>"
STUDY = Study("costs", "cost", {"cost": Number(), "age": Number()})
SITES = ("all", *(f"hospital {k} {HOSTILE}" for k in range(12)))
ROWS = [[Cell(f"cost {HOSTILE}"), *(Cell("1,234 (56.7)") for _ in SITES)]]
ENTRY = Entry.after(None, "open", time="2026-01-01T00:00:00Z", study="0f3a", genesis="", key="")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    whole = Table("Study costs: 99 samples", [("", len(SITES))], SITES, ROWS)
    text = descriptives_page(STUDY, [(whole, [f"a note {HOSTILE}"]), (Table("nothing", [], [], []), [])], entry=ENTRY)
    (folder / "page.html").write_text(text, encoding="utf-8")
    with browser(folder / "profile") as chrome:
        chrome.get((folder / "page.html").as_uri())
        yield chrome


def test_it_shows_the_table_the_notes_and_the_source(page):
    assert texts(page, "h2") == ["Study costs: 99 samples", "Source"]
    assert texts(page, "tbody th") == [f"cost {HOSTILE}"]
    assert texts(page, "li") == [f"a note {HOSTILE}"]
    assert ENTRY.hash in texts(page, "dd")
    assert any(re.fullmatch("([a-z2-7]{4}-){7}[a-z2-7]{4}", text) for text in texts(page, "dd"))
    assert console_errors(page) == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390])
def test_every_text_is_inside_and_has_contrast(page, scheme, width):
    prefer(page, scheme)
    resize(page, width, 900, phone=width < 500)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert {text: ratio for ratio, text in contrasts(page) if ratio < 4.5} == {}
