"""The status page as a reader sees it, in a real browser."""

import pytest

from fedgram.exchange.pages.store_status import status, status_page
from fedgram.exchange.store.publishing import validate
from support.browser import browser, console_errors, resize
from support.stores import store_of

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
NAMES = ("north", "<script>alert(1)</script>", "Straße Ω")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    store = store_of(folder / "store", *NAMES)
    store.publish("afl")
    store.join(b"")
    text = status_page(status(store, dict(validate(store))), store.log())
    (folder / "status.html").write_text(text, encoding="utf-8")
    with browser(folder / "profile") as chrome:
        chrome.get((folder / "status.html").as_uri())
        yield chrome


def cells(page, heading, column):
    """Return a column of the table under a heading."""
    path = f"//h2[text()='{heading}']/following::table[1]/tbody/tr/td[{column}]"
    return [cell.text for cell in page.find_elements("xpath", path)]


def test_the_page_shows_who_is_in_and_how_they_are_predicted(page):
    assert cells(page, "Who is in", 1) == list(NAMES)
    assert cells(page, "Leaving one party out", 1) == list(NAMES)
    bars = page.find_elements("css selector", "svg rect")
    assert len(bars) == len(NAMES) * 4
    assert all(bar.rect["width"] > 50 for bar in bars)  # parties of one size, predicted about as well
    assert cells(page, "Publications", 2) == ["afl"]
    assert cells(page, "Ledger", 3) == ["publish", "join", "join", "join", "open"]
    assert console_errors(page) == []


def test_the_page_asks_the_network_for_nothing_and_fits_a_telephone(page):
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    resize(page, 390, 800, phone=True)
    wide = page.execute_script("return document.documentElement.scrollWidth")
    resize(page, 1280, 900)
    assert wide <= 390
