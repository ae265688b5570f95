"""The passport's page as a reader sees it, in a real browser."""

import base64
import re

import pytest

from fedgram.exchange.pages.passport import Passport, passport_page
from support.browser import browser, console_errors, resize
from support.exchange import keyed_study, summary, tables

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def passport(tmp_path_factory):
    return Passport.of(summary(keyed_study(), tables(tmp_path_factory.mktemp("tables"))["north"]))


@pytest.fixture(scope="module")
def page(passport, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "north.html").write_text(passport_page(passport), encoding="utf-8")
    with browser(folder / "profile") as chrome:
        chrome.get((folder / "north.html").as_uri())
        yield chrome


def test_the_page_shows_bars_in_proportion_and_no_errors(page, passport):
    assert page.title == "Passport of north’s summary file"
    parts = page.find_elements("css selector", "svg:first-of-type .part")
    wholes = page.find_elements("css selector", "svg:first-of-type .whole")
    shares = [part.rect["width"] / whole.rect["width"] for part, whole in zip(parts, wholes, strict=True)]
    missing = [column.missing for column in passport.columns if column.missing is not None]
    counts = [*passport.classes.values(), *missing]
    assert shares == pytest.approx([count / passport.samples for count in counts], abs=0.01)
    assert console_errors(page) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_on_any_screen(page, width):
    resize(page, width, 900)
    inner = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert inner[0] <= inner[1]


def test_it_prints_on_two_sheets_at_most(page):
    a4 = {"paperWidth": 8.27, "paperHeight": 11.69}
    sheets = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", a4)["data"])
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 2
