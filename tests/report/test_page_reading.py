"""A reader's use of the page: reading, also by keyboard, saving, and returning to a view."""

import csv
import io
import xml.etree.ElementTree as ET

import pytest

from fedgram.experiments.results import load_results
from fedgram.report import formats
from fedgram.report.report_page import write_page
from fedgram.report.result_tables import accuracy_table
from support.browser import browser, console_errors, prefer, resize
from support.made_up import comparison, weights, write
from support.page import click, contrasts, downloads, eventually, methods, texts
from support.report import record

LEAST = 4.5  # WCAG 2.1, level AA
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a page with every kind of chart: two settings, curves, a sweep, a matrix, a failure."""
    records = list(comparison(methods=13, clients=(6,), alphas=(0.1, 1.0), seeds=1, rounds=5))
    runs = [one for one in records if one["kind"] == "run"]
    names = next(one["names"] for one in records if one["kind"] == "setting")
    for one in runs:
        if one["label"] in ("method-01", "method-02"):
            gamma = int(one["label"][-1])
            one |= {"method": "swept", "settings": {"gamma": gamma}, "matrices": weights(names)}
    records.append(runs[-1] | {"key": "failed", "label": "=broken", "status": "failed", "error": "no luck"})
    folder = tmp_path_factory.mktemp("page")
    results = load_results([write(folder / "results.jsonl", records)])
    return write_page(results, folder / "report.html", title="Everything")


@pytest.fixture
def page(chrome, path):
    resize(chrome, 1280, 900)
    prefer(chrome, "light")
    chrome.get("about:blank")
    chrome.get(path.as_uri())
    yield chrome
    assert console_errors(chrome) == []


def unfold(page):
    page.execute_script("for (const node of document.querySelectorAll('details:not([open]) > summary')) node.click()")
    assert page.execute_script("return document.querySelectorAll('details:not(:has(table))').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_text_has_contrast(page, scheme, width):
    prefer(page, scheme)
    resize(page, width, 900, phone=width < 500)
    page.refresh()
    click(page, "[data-filter='Methods:method-05']")
    unfold(page)
    page.execute_script("document.querySelector('svg.chart [tabindex]').dispatchEvent(new FocusEvent('focus'))")
    found = contrasts(page)
    assert len(found) > 500
    assert any(text == "method-05" for _, text in found), "what is hidden must be readable too"
    assert any(text == "accuracy" for _, text in found), "the tooltip is open"
    low = {text: round(ratio, 2) for ratio, text in found if ratio < LEAST}
    assert low == {}


def test_the_rule_of_contrast_finds_what_is_too_faint(page):
    page.execute_script("document.querySelector('h1').style.color = '#888'")
    assert [text for ratio, text in contrasts(page) if ratio < LEAST] == ["Everything"]
    page.execute_script(
        "document.querySelector('h1').style.opacity = 0.6; document.querySelector('h1').style.color = ''"
    )
    assert [text for ratio, text in contrasts(page) if ratio < LEAST] == []
    page.execute_script("document.querySelector('h1').style.opacity = 0.4")
    assert [text for ratio, text in contrasts(page) if ratio < LEAST] == ["Everything"]


def test_every_axis_has_a_title(page):
    charts = page.execute_script(
        "return [...document.querySelectorAll('svg.chart')].map((chart) => [chart.getAttribute('aria-label'),"
        " [...chart.querySelectorAll('text.title')].map((text) => [text.textContent, text.hasAttribute('transform')])])"
    )
    titles = {label.partition(":")[0].partition(",")[0]: dict(found) for label, found in charts}
    accuracy = {"accuracy in %, client mean": True}
    assert titles == {
        "Accuracy against bytes a client": {"bytes a client, up and down (logarithmic)": False} | accuracy,
        "Accuracy against CPU time": {"CPU time (logarithmic)": False} | accuracy,
        "swept": {"gamma of swept": False} | accuracy,
        "Accuracy per round": {"round": False} | accuracy,
        "Accuracy by bytes": {"bytes a client, up and down (logarithmic)": False} | accuracy,
        "Accuracy by CPU time": {"CPU time (logarithmic)": False} | accuracy,
        "Accuracies of single clients": {"accuracy of a client in %": False, "method": True},
    }
    click(page, "[data-filter='Metric:worst_decile']")
    assert "accuracy in %, worst decile" in texts(page, "#costs text.title")


def test_whatever_can_be_focused_says_what_it_is(page):
    unfold(page)
    marks = page.execute_script(
        """
        const name = (node) => node.getAttribute("aria-label") || node.innerText || "";
        return [...document.querySelectorAll("[tabindex], button, select, summary")].map((node) => [
          node.closest("svg.chart") !== null, node.getAttribute("role") || node.tagName, name(node)]);
        """
    )
    in_charts = [(role, name) for inside, role, name in marks if inside]
    # Twelve methods in both scatters, four points of the sweep, the strips with the reference; ten curves and two stars
    # by rounds, by bytes and by CPU time.
    assert len(in_charts) == 2 * 12 + 4 + 13 + 3 * (10 + 2)
    assert all(role == "img" and ": " in name and "%" in name for role, name in in_charts)
    assert all(role in {"BUTTON", "SELECT", "SUMMARY", "region"} and name for inside, role, name in marks if not inside)


def test_the_keyboard_gets_what_the_pointer_gets(page):
    mark = page.find_element("css selector", "#costs svg.chart [tabindex]")
    page.execute_script("arguments[0].focus()", mark)
    tip = page.find_element("id", "tip")
    assert tip.is_displayed()
    assert all(word in mark.get_attribute("aria-label") for word in tip.text.split("\n")[0].split())


def test_tables_and_pictures_can_be_taken_along(page, path, tmp_path):
    unfold(page)
    files = downloads(page, tmp_path)
    pictures = {name for name in files if not name.endswith(".csv")}
    assert pictures == {
        "accuracy-bytes.svg", "accuracy-cpu.svg", "sensitivity-swept-gamma.svg", "accuracy-rounds-6-clients-α-0-1.svg",
        "accuracy-rounds-bytes-6-clients-α-0-1.svg", "accuracy-rounds-cpu-6-clients-α-0-1.svg",
        "clients-6-clients-α-0-1.svg", "classes-6-clients-α-0-1.png",
        "matrix-aggregation-weights-method-01-6-clients-α-0-1.png",
        "matrix-aggregation-weights-method-02-6-clients-α-0-1.png",
    }  # fmt: skip
    for name in pictures:
        if name.endswith(".png"):
            assert files[name].startswith(b"\x89PNG\r\n\x1a\n")
            assert len(files[name]) > 2000
            continue
        root = ET.fromstring(files[name])
        assert any(c.isdigit() for c in root.find(f"{SVG}title").text)
        assert b"var(" not in files[name], "a file has no style sheet"
        assert all(node.get("fill") for node in root.iter(f"{SVG}text"))
    tables = {name: list(csv.reader(io.StringIO(files[name].decode()))) for name in files.keys() - pictures}
    # The whole table, tests, one for each picture, costs to reach an accuracy, failures, hyper-parameters, versions.
    assert len(tables) == 2 + len(pictures) + 4
    results = load_results([path.parent / "results.jsonl"])
    assert files["accuracy-client_mean.csv"].decode() == formats.comma_separated(results, "client_mean")
    assert tables["failures.csv"][1][0] == "'=broken", "no spreadsheet may take a name for a formula"
    assert tables["swept-gamma.csv"][0] == ["setting", "1", "2"]
    assert all(len({len(row) for row in table}) == 1 for table in tables.values())


def test_a_reload_and_the_back_button_keep_what_was_chosen(page):
    def shown():
        pressed = texts(page, ".segment [aria-pressed='true']")
        return pressed, "method-03+FT" in methods(page), page.find_element("id", "setting").get_attribute("value")

    start = shown()
    assert start == (["Client mean"], True, "0")
    click(page, "[data-filter='Metric:pooled']")
    click(page, "[data-filter='Methods:method-03+FT']")
    page.execute_script(
        "const node = document.getElementById('setting'); node.value = 1; node.dispatchEvent(new Event('change'))"
    )
    chosen = (["Pooled"], False, "1")
    assert shown() == chosen
    address = page.current_url
    page.refresh()
    assert shown() == chosen
    assert page.current_url == address

    def comes(expected):
        return eventually(shown, lambda found: found == expected) == expected

    page.back()
    assert comes((["Pooled"], False, "0"))
    page.back()
    assert comes((["Pooled"], True, "0"))
    page.back()
    assert comes(start)
    page.forward()
    assert comes((["Pooled"], True, "0"))
    page.get(address)
    assert comes(chosen), "a link leads to the same view"


def test_an_address_of_other_results_does_no_harm(page, path):
    page.get("about:blank")
    hide = "&".join(f"hide=Methods:method-{m:02d}" for m in range(40))
    page.get(f"{path.as_uri()}#metric=nonsense&setting=nowhere&sort=c99:down&hide=nobody&{hide}")
    assert page.execute_script("return document.documentElement.dataset.ready") == "true"
    assert texts(page, ".segment [aria-pressed='true']") == ["Client mean"]
    assert methods(page)[0] == "centralised"


def test_the_order_of_the_table_is_in_the_address(page):
    click(page, "[data-sort='c0']")
    click(page, "[data-sort='c0']")
    order = methods(page)
    page.refresh()
    assert methods(page) == order
    page.back()
    assert eventually(lambda: methods(page), lambda found: found != order) != order


@pytest.mark.parametrize("metric", ["client_mean", "pooled", "worst_decile"])
def test_one_seed_has_the_intervals_and_marks_of_the_other_formats(page, path, metric):
    click(page, f"[data-filter='Metric:{metric}']")
    table = accuracy_table(load_results([path.parent / "results.jsonl"]), metric)
    rows = page.find_elements("css selector", "table.main tbody tr")
    shown = [row.find_elements("css selector", "td")[:2] for row in rows]
    assert [[" ".join(cell.text.split()) for cell in row] for row in shown] == [
        [entry.text for entry in row[1:]] for row in table.rows
    ]
    classes = [[cell.get_attribute("class") for cell in row] for row in shown]
    expected = [[["", "best", "second"][entry.rank] for entry in row[1:]] for row in table.rows]
    assert [[{"failed": ""}.get(name, name) for name in row] for row in classes] == expected
    interval = "± half of a 95 % t interval over the clients"
    assert (interval in page.find_element("css selector", "#accuracy .note").text) is (metric != "worst_decile")


def headline(chrome, folder, runs):
    results = load_results([write(folder / "results.jsonl", runs)])
    chrome.get(write_page(results, folder / "report.html", title="Headline").as_uri())
    return [" ".join(text.split()) for text in texts(chrome, ".tile")]


def test_personal_methods_and_global_models_are_named_apart(chrome, tmp_path):
    runs = [
        record("centralised", 0.9, reference=True),
        record("afl", 0.88),
        record("fedavg", 0.7),
        record("fedgram", 0.97),
        record("local", 0.8),
    ]
    tiles = headline(chrome, tmp_path, runs)
    assert tiles[:2] == [
        "Best personal method fedgram 97.00 %",
        "Best global model afl 88.00 %, −2.00 points against all data in one place (centralised: 90.00 %)",
    ]
    tags = dict(zip(methods(chrome), texts(chrome, "table.main tbody th"), strict=True))
    assert {name for name, text in tags.items() if text.endswith("personal")} == {"fedgram", "local"}
    click(chrome, "[data-filter='Methods:fedgram']")
    assert texts(chrome, ".tile")[0] == "Best personal method local 80.00 %"


def test_methods_that_nobody_here_knows_are_not_set_against_the_reference(chrome, tmp_path):
    runs = [record("centralised", 0.9, reference=True), record("theirs", 0.95), record("others", 0.8)]
    tiles = headline(chrome, tmp_path, runs)
    assert tiles[0] == "Highest accuracy on average theirs 95.00 %"
    assert not any("all data in one place" in text for text in tiles)


def test_what_the_most_frequent_class_nearly_has_is_marked_and_explained(chrome, tmp_path):
    """The line itself is a reference, but not that of all data in one place."""
    line = record("own most frequent class", 0.6, reference=True, personal=False)
    runs = [line, record("a", 0.604, personal=False), record("b", 0.9, personal=True)]
    tiles = headline(chrome, tmp_path, runs)
    assert not any("all data in one place" in text for text in tiles)
    assert tiles[-1].startswith("Runs 2")
    rows = {
        row.get_attribute("data-method"): row for row in chrome.find_elements("css selector", "table.main tbody tr")
    }
    shown = {name: " ".join(row.find_element("css selector", "td").text.split()) for name, row in rows.items()}
    assert shown == {"own most frequent class": "60.00", "a": "60.40 †", "b": "90.00"}
    assert rows["own most frequent class"].get_attribute("class") == "reference"
    assert "† is at most 0.5 points above" in chrome.find_element("css selector", "#accuracy .note").text
