"""The page of other figures than accuracies: errors of numeric outcomes, probabilities, parties left out."""

import pytest

from fedgram.experiments.results import load_results
from fedgram.report.report_page import render_page, write_page
from fedgram.report.result_tables import accuracy_table
from report.test_metrics import probable
from support.browser import console_errors, prefer, resize
from support.made_up import write
from support.numeric import NUMERIC
from support.page import alternatives, click, contrasts, methods, taken_apart, texts


def opened(chrome, folder, records):
    results = load_results([write(folder / "results.jsonl", records)])
    resize(chrome, 1280, 900)
    prefer(chrome, "light")
    chrome.get(write_page(results, folder / "report.html", title="Figures").as_uri())
    assert chrome.execute_script("return document.documentElement.dataset.ready") == "true"
    return results


@pytest.fixture
def page(chrome, tmp_path):
    opened(chrome, tmp_path, NUMERIC)
    yield chrome
    assert console_errors(chrome) == []


def test_the_lowest_error_is_the_headline_and_bold(page, tmp_path):
    assert texts(page, ".segment button") == ["RMSE", "MAE", "R²", "Client mean RMSE"]
    results = load_results([tmp_path / "results.jsonl"])
    for key in ("rmse", "mae", "r2", "client_rmse"):
        click(page, f"[data-filter='Metric:{key}']")
        table = accuracy_table(results, key)
        rows = page.find_elements("css selector", "table.main tbody tr")
        cells = [row.find_element("css selector", "td") for row in rows]
        assert [" ".join(cell.text.split()) for cell in cells] == [row[1].text for row in table.rows]
        marked = [cell.get_attribute("class") for cell in cells]
        assert marked == [["", "best", "second"][row[1].rank] for row in table.rows]
    click(page, "[data-filter='Metric:rmse']")
    tiles = texts(page, ".tile")
    assert tiles[0].startswith("Best personal method fedgram RMSE of cost 0.")
    assert "EUR" in tiles[0]
    assert "against all data in one place (centralised: " in tiles[1]
    assert texts(page, "#accuracy h2") == ["RMSE of cost"]


def test_errors_are_sorted_from_the_lowest(page):
    click(page, "[data-sort='c0']")
    assert methods(page) == ["centralised", "fedgram", "afl", "local"]
    click(page, "[data-sort='c0']")
    assert methods(page) == ["centralised", "local", "afl", "fedgram"]
    click(page, "[data-filter='Metric:r2']")
    click(page, "[data-sort='name']")
    click(page, "[data-sort='c0']")
    assert methods(page) == ["centralised", "fedgram", "afl", "local"]


def test_other_errors_stand_beside_and_parties_are_left_out(page):
    assert texts(page, "table.main thead [data-sort]")[2:4] == ["MAE", "R²"]
    click(page, "[data-filter='Metric:mae']")
    assert texts(page, "table.main thead [data-sort]")[2:4] == ["RMSE", "R²"]
    card = next(text for text in texts(page, ".card") if text.startswith("Parties left out in turn"))
    assert "west 30 1.5 10 20 -2 does not fit the others" in card
    told = alternatives(page)
    assert any(text.startswith("MAE of cost of single clients") for text in told)
    assert not any("class" in text for text in told)
    assert "Accurac" not in page.find_element("css selector", "#main").text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(chrome, tmp_path, theme):
    opened(chrome, tmp_path, [probable("afl", 0.12, 0.03), probable("local", 0.2, 0.01)])
    prefer(chrome, theme)
    chrome.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    chrome.execute_script("for (const node of document.querySelectorAll('details')) node.open = true")
    assert min(contrasts(chrome)) >= (4.5,)


def test_probabilities_have_a_chart_and_columns(chrome, tmp_path):
    opened(chrome, tmp_path, [probable("afl", 0.12, 0.03), probable("local", 0.2, 0.01)])
    assert texts(chrome, "table.main thead [data-sort]")[2:4] == ["Brier score", "Calibration error"]
    [told] = [text for text in alternatives(chrome) if text.startswith("Reliability of probabilities")]
    assert "afl: calibration error 0.0500" in told
    click(chrome, "[data-filter='Metric:brier']")
    assert texts(chrome, "table.main td.second .value")[:2] == ["0.1200", "0.2000"]
    assert any(text.startswith("Brier score of single clients") for text in alternatives(chrome))
    assert console_errors(chrome) == []


def test_the_page_is_one_file_that_asks_for_nothing(tmp_path):
    page = render_page(load_results([write(tmp_path / "results.jsonl", NUMERIC)]), title="Figures")
    _, payload, _ = taken_apart(page)
    assert payload["metric"] == "rmse"
    assert payload["numeric"] is True
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
