"""The page as a reader meets it: opened in a real Chromium from disk, clicked, sorted, filtered and looked at."""

import base64

import pytest
from selenium.webdriver.support.select import Select

import fedgram as fg
from fedgram.experiments import Experiment, execute, runs_of
from fedgram.experiments.results import load_results
from fedgram.report import report_page
from fedgram.report.report_page import render_page, write_page
from fedgram.report.result_tables import accuracy_table
from support.browser import console_errors, prefer, resize
from support.gradual import Fragile, Gradual, Nobody
from support.page import alternatives, click, methods, taken_apart, texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def results(folder):
    """Return real results: three methods, four settings, two seeds, and one method that fails."""
    with pytest.MonkeyPatch.context() as patch:
        for cls in (Gradual, Fragile):
            patch.setitem(fg.registry._methods, cls.name, cls)
        experiment = Experiment.of(
            {
                "data": "digits",
                "clients": [5, 20],
                "partitions": ["dirichlet:0.1", "iid"],
                "methods": ["afl", {"name": "local", "ridge": [1, 10]}, {"name": "gradual", "rounds": 8}, "fragile"],
                "seeds": [0, 1],
            }
        )
        execute(list(runs_of(experiment)), folder / "results.jsonl", watcher=Nobody())
    return load_results([folder / "results.jsonl"])


@pytest.fixture
def page(chrome, folder, results):
    path = write_page(results, folder / "report.html", title="Digits & friends")
    resize(chrome, 1280, 900)
    prefer(chrome, "light")
    chrome.get(path.as_uri())
    assert chrome.execute_script("return document.documentElement.dataset.ready") == "true"
    yield chrome
    assert console_errors(chrome) == []


def column(chrome, key):
    """Return the numbers under a heading, top to bottom, without the reference."""
    script = """
      const heads = [...document.querySelectorAll("table.main [data-sort]")].map((node) => node.dataset.sort);
      const at = heads.indexOf(arguments[0]);
      return [...document.querySelectorAll("table.main tbody tr:not(.reference)")].map(
        (row) => parseFloat(row.children[at].textContent));
    """
    return [value for value in chrome.execute_script(script, key) if value is not None]


@pytest.mark.parametrize("metric", ["client_mean", "pooled", "worst_decile", "best_round"])
def test_the_table_is_the_one_of_the_other_formats(page, results, metric):
    click(page, f"[data-filter='Metric:{metric}']")
    table = accuracy_table(results, metric)
    rows = page.find_elements("css selector", "table.main tbody tr")
    assert len(rows) == len(table.rows) == 7
    for row, expected in zip(rows, table.rows, strict=True):
        shown = [" ".join(cell.text.split()) for cell in row.find_elements("css selector", "td")]
        assert shown[:4] == [entry.text for entry in expected[1:]]
        marks = [cell.get_attribute("class") for cell in row.find_elements("css selector", "td")]
        assert [["", "best", "second"].index(mark if mark in ("best", "second") else "") for mark in marks[:4]] == [
            entry.rank for entry in expected[1:]
        ]


def test_columns_sort_both_ways_and_the_reference_stays_on_top(page):
    for key in ("c0", "mean", "bytes", "cpu"):
        cheap = key in ("bytes", "cpu")
        click(page, f"[data-sort='{key}']")
        first = methods(page)
        click(page, f"[data-sort='{key}']")
        assert first[0] == methods(page)[0] == "centralised"
        head = page.find_element("css selector", f"th:has([data-sort='{key}'])")
        assert head.get_attribute("aria-sort") == ("descending" if cheap else "ascending")
        assert methods(page)[1:] != first[1:]
    click(page, "[data-sort='c1']")
    assert (numbers := column(page, "c1")) == sorted(numbers, reverse=True)
    click(page, "[data-sort='name']")
    assert methods(page) == [
        "centralised",
        "own most frequent class",
        "afl",
        "fragile",
        "gradual (rounds=8)",
        "local (ridge=1)",
        "local (ridge=10)",
    ]


def test_filters_reach_the_table_and_the_charts(page):
    assert any("afl" in text for text in alternatives(page))
    click(page, "[data-filter='Methods:afl']")
    assert "afl" not in methods(page)
    assert not any("afl:" in text for text in alternatives(page))
    click(page, "[data-filter='Methods:afl']")
    click(page, "[data-filter='Clients:5 clients']")
    assert texts(page, "thead .group span") == ["20 clients"]
    assert texts(page, "#setting option") == ["20 clients, α = 0.1", "20 clients, IID"]
    click(page, "[data-filter='Spread:IID']")
    assert "mean" not in texts(page, "table.main thead button")
    assert all("IID" not in text for text in alternatives(page))
    # The last method cannot be hidden: the chart would be empty.
    click(page, "[data-filter='Clients:20 clients']")
    assert "20 clients" in texts(page, "thead .group span")


def test_single_clients_are_shown_of_the_chosen_seed(page, results):
    """The seed stays when the setting changes, and in the address."""
    assert [option.text for option in Select(page.find_element("id", "seed")).options] == ["0", "1"]

    def shown():
        (clients,) = (text for text in texts(page, "#detail .card") if text.startswith("Accuracies of single clients"))
        (words,) = (text for text in alternatives(page) if text.startswith("Accuracies of single clients"))
        return clients, words

    def expected(seed, column):
        (run,) = (
            run
            for run in results.finished
            if (run.label, run.seed, run.column) == ("afl", seed, results.columns[column])
        )
        worst = min(100 * value for value in run.by_client if value is not None)
        return f"This is seed {seed}.", f"afl: lowest {worst:.1f}"

    for seed, column in ((0, 0), (1, 0), (1, 2)):
        Select(page.find_element("id", "setting")).select_by_index(column)
        Select(page.find_element("id", "seed")).select_by_visible_text(str(seed))
        for text, wanted in zip(shown(), expected(seed, column), strict=True):
            assert wanted in text
    assert "seed=1" in page.current_url
    page.refresh()
    for text, wanted in zip(shown(), expected(1, 2), strict=True):
        assert wanted in text


def test_pointing_at_a_client_tells_its_figures(page, results):
    Select(page.find_element("id", "setting")).select_by_visible_text("20 clients, α = 0.1")
    assert "20 clients, α = 0.1" in page.find_element("css selector", "canvas").get_attribute("aria-label")
    told = page.execute_script(
        """
        const chart = document.querySelector("svg.chart[aria-label^='Accuracies of single']");
        chart.scrollIntoView({ block: "center" });
        const box = chart.getBoundingClientRect();
        const dots = chart.querySelectorAll("path[stroke-linecap]")[2].getAttribute("d");
        const [, x, y] = dots.match(/^M([\\d.]+) ([\\d.]+)/);
        const at = { clientX: box.left + +x, clientY: box.top + +y };
        chart.dispatchEvent(new PointerEvent("pointermove", at));
        return [document.getElementById("tip").innerText, chart.querySelectorAll("circle").length];
        """
    )
    tip, rings = told
    assert tip.startswith("client-00 · afl") or "· afl" in tip
    for word in ("accuracy", "test samples", "training samples", "classes", "sent up", "sent down"):
        assert word in tip
    assert rings == 6, "the same client is followed through all methods"


def test_hover_over_a_cell_tells_every_seed(page):
    cell = page.find_elements("css selector", "table.main tbody tr td")[0]
    page.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointerenter', {clientX: 5, clientY: 5}))", cell)
    tip = page.find_element("id", "tip").text
    assert "seed 0" in tip
    assert "seed 1" in tip


def test_pictures_have_text_alternatives(page):
    labels = alternatives(page)
    assert len(labels) >= 6
    assert all(label and any(c.isdigit() for c in label) for label in labels)
    for name in (
        "Accuracy against bytes",
        "Accuracy against CPU",
        "Accuracy per round",
        "Accuracies of single",
        "Training samples",
    ):
        assert any(label.startswith(name) for label in labels), name
    assert any("after 8 rounds" in label for label in labels)
    page.execute_script("for (const node of document.querySelectorAll('.holder summary')) node.click()")
    charts = page.execute_script(
        "return [...document.querySelectorAll('.holder')].map((h) => h.querySelectorAll('details table tr').length)"
    )
    assert all(rows > 1 for rows in charts)


def test_failures_are_told(page):
    about = page.find_element("id", "about").text
    assert "8 runs failed" in about
    assert "ZeroDivisionError: no such thing" in about


def test_light_and_dark(page):
    def background():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = background()
    prefer(page, "dark")
    page.refresh()
    assert background() != light
    click(page, "#theme")
    assert background() == light
    page.execute_script("localStorage.clear()")


def hidden_by_scrolling(page, selector):
    """Return by how many pixels the elements are wider than what is seen of them."""
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.scrollWidth - node.clientWidth)"
    return page.execute_script(script, selector)


def test_costs_to_reach_an_accuracy_are_seen_whole(page):
    resize(page, 1300, 900)
    page.refresh()
    assert set(hidden_by_scrolling(page, "#detail .tight")) == {0}


def test_it_fits_a_phone(page):
    for width in (360, 390):
        resize(page, width, 800, phone=True)
        page.refresh()
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        for choices in (".bar .wrap", ".segment", ".filter"):
            assert set(hidden_by_scrolling(page, choices)) == {0}, f"{choices}: a choice is cut"
        small = page.execute_script(
            "const texts = [...document.querySelectorAll('svg.chart text')];"
            "return Math.min(...texts.map((text) => text.getBoundingClientRect().height))"
        )
        assert small >= 10, "text of charts is too small to read"


def test_it_prints(page):
    pdf = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000


def test_a_screenshot_is_not_blank(page, tmp_path):
    path = tmp_path / "page.png"
    page.save_screenshot(str(path))
    assert path.stat().st_size > 40_000


def test_it_asks_the_network_for_nothing(page, results):
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    text = render_page(results, title="x")
    assert "http://www.w3.org/2000/svg" in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg") + text.count("http-equiv")


def test_readers_without_javascript_get_the_table(results):
    text = render_page(results, title="x")
    plain = text[text.index("<noscript>") : text.index("</noscript>")]
    assert plain.count("<tr>") == 8
    assert "<b>" in plain


def test_seeds_beyond_what_a_page_can_hold_are_left_out(results, monkeypatch):
    _, payload, _ = taken_apart(render_page(results, title="x"))
    assert [view["seeds"] for view in payload["others"]] == [[1, 1, 1, 1]]
    monkeypatch.setattr(report_page, "MOST_DETAILS", 100)
    _, payload, _ = taken_apart(render_page(results, title="x"))
    assert payload["others"] == []


def test_embedded_numbers_are_json(results):
    text = render_page(results, title="x")
    _, payload, _ = taken_apart(text)
    assert len(payload["runs"]) == 56  # 8 of them of the line "own most frequent class"
