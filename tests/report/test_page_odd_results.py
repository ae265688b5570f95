"""The page of odd results: untested clients, matrices, missing metrics, markup in names, and very many of them."""

import json

import pytest
from selenium.webdriver.support.select import Select

from fedgram.experiments.results import load_results
from fedgram.report.report_page import MOST_ENTRIES, render_page, write_page
from fedgram.report.result_tables import accuracy_table
from support.browser import console_errors, prefer, resize
from support.made_up import comparison, weights, write
from support.page import alternatives, click, cost_of_opening, methods, taken_apart, texts

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'> & \u2028 ${x}"


def opened(chrome, folder, records, *, edit=lambda payload: None):
    """Write records, open their page, and return its errors; `edit` may change the page's own data before."""
    head, payload, tail = taken_apart(page_of(folder, records))
    edit(payload)
    path = folder / "report.html"
    path.write_text(head + json.dumps(payload) + tail, encoding="utf-8")
    resize(chrome, 1280, 900)
    chrome.get(path.as_uri())
    assert chrome.execute_script("return document.documentElement.dataset.ready") == "true"
    return console_errors(chrome)


def page_of(folder, records):
    return render_page(load_results([write(folder / "results.jsonl", records)]), title="Odd")


def few(**changes):
    """Return the records of three methods in one setting, or more where told."""
    return list(comparison(**{"methods": 3, "clients": (4,), "alphas": (1.0,), "seeds": 1, "rounds": 3} | changes))


def panel_of(payload, name, column):
    """Return the part of a chart's description that is about one setting."""
    (chart,) = [chart for chart in payload["charts"] if chart["name"] == name]
    (panel,) = [panel for panel in chart["panels"] if panel["column"] == column]
    return panel


def runs(records):
    return [record for record in records if record["kind"] == "run"]


def test_runs_whose_clients_are_all_untested(chrome, tmp_path):
    records = few()
    runs(records)[1] |= {"tested": [0] * 4, "correct": [0] * 4}
    assert opened(chrome, tmp_path, records) == []
    (label,) = [text for text in alternatives(chrome) if text.startswith("Accuracies of single")]
    assert "method-02" in label
    assert "method-01" not in label
    for record in runs(records):
        record |= {"tested": [0] * 4, "correct": [0] * 4}
    assert opened(chrome, tmp_path, records) == []
    assert "No accuracies of single clients in this setting." in texts(chrome, "#detail .empty")


# Pixels of the matrix's picture and their tooltips, cell by cell.
POINT_AT = """
  const canvas = document.querySelector("canvas[aria-label^='Aggregation weights']");
  canvas.scrollIntoView({ block: "center" });
  const box = canvas.getBoundingClientRect(), size = 40;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return arguments[0].map(([i, j]) => {
    const x = canvas.width - (4 - j) * size + 4, y = i * size + 4;
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
    const at = 4 * (y * canvas.width + x);
    return [document.getElementById("tip").innerText, [...pixels.slice(at, at + 3)]];
  });
"""


def test_a_matrix_is_a_card_of_its_method(chrome, tmp_path):
    records = few(seeds=2)
    names = next(record["names"] for record in records if record["kind"] == "setting")
    for record in runs(records):
        if record["label"] == "method-01":
            record["matrices"] = weights(names, own=0.8 + record["seed"] / 10)
    prefer(chrome, "light")
    assert opened(chrome, tmp_path, records) == []

    def matrix_cards():
        return [text for text in texts(chrome, "#detail .card") if text.startswith("Aggregation weights")]

    (card,) = matrix_cards()
    assert "method-01" in card
    assert "This is seed 0." in card
    assert "0.001 0.002 off the diagonal" in card
    assert "The diagonal (dots) goes beyond the scale: it is 0.8 to 0.8." in card
    (label,) = [text for text in alternatives(chrome) if text.startswith("Aggregation weights")]
    assert label.endswith("4 clients; of others 0.001 to 0.002, of themselves 0.8 to 0.8")
    places = [(0, 0), (0, 1), (0, 3), (3, 2)]
    told, light = zip(*chrome.execute_script(POINT_AT, places), strict=True)
    assert [text.split() for text in told] == [
        ["client-000", "of", "itself", "0.8"],
        ["client-000", "of", "client-001", "0.002"],
        ["client-000", "of", "client-003", "0.001"],
        ["client-003", "of", "client-002", "0.002"],
    ]
    assert light[0] == light[1] == light[3] != light[2], "the diagonal has the colour of the highest of the others"
    click(chrome, "#detail .grid summary")
    rows = texts(chrome, "#detail .grid details tr")
    assert rows[:2] == ["client client-000 client-001 client-002 client-003", "client-000 0.8 0.002 0.001 0.001"]
    click(chrome, "#theme")
    _, dark = zip(*chrome.execute_script(POINT_AT, places), strict=True)
    assert sum(dark[2]) < sum(dark[0]) != sum(light[0]), "little is near the background, which is dark now"
    chrome.execute_script("localStorage.clear()")
    click(chrome, "[data-filter='Methods:method-01']")
    assert matrix_cards() == []
    assert console_errors(chrome) == []


def test_matrices_of_lost_clients_and_of_other_things(chrome, tmp_path):
    records = few()
    values = [[None, -1.5, 2, 0]] * 2
    runs(records)[1]["matrices"] = weights(["client-000", "client-003"]) | {"centres": {"values": values}}
    runs(records)[2]["matrices"] = weights(["alone"])
    assert opened(chrome, tmp_path, records) == []
    assert [label.partition(": ")[2] for label in alternatives(chrome)[-2:]] == [
        "2 clients; of others 0.002 to 0.002, of themselves 0.9 to 0.9",
        "2 rows by 4 columns, -1.5 to 2",
    ]
    assert texts(chrome, "#detail .empty") == ["Nothing to compare: no finite value off the diagonal."]


def test_matrices_beyond_what_a_page_can_hold_are_said_to_be_left_out(chrome, tmp_path):
    records = few(methods=7, clients=(200,))
    for record in runs(records)[1:]:
        record["matrices"] = weights([f"client-{k:03d}" for k in range(200)])
    assert opened(chrome, tmp_path, records) == []
    shown = [label for label in alternatives(chrome) if label.startswith("Aggregation weights")]
    assert len(shown) == MOST_ENTRIES // 200**2 == 5
    (left_out,) = texts(chrome, "#detail .empty")
    assert left_out.startswith("Left out here")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def without_classes(payload):
    (chart,) = [chart for chart in payload["charts"] if chart["name"] == "classes"]
    del chart["panels"][0]["heat"]


def test_one_broken_chart_does_not_take_the_page_down(chrome, tmp_path):
    errors = opened(chrome, tmp_path, few(), edit=without_classes)
    assert len(errors) == 1
    (told,) = texts(chrome, "#detail .empty")
    assert told.startswith("This could not be drawn: ")
    assert any(label.startswith("Accuracies of single") for label in alternatives(chrome))
    assert "Hyper-parameters" in chrome.find_element("id", "about").text


@pytest.mark.parametrize("short", [{}, {"client_mean": []}, {"client_mean": [0.1]}])
def test_learning_curves_may_lack_a_metric(chrome, tmp_path, short):
    records = few(methods=12)
    runs(records)[-1]["rounds"] = {"pooled": [0.1, 0.2, 0.3]} | short
    assert opened(chrome, tmp_path, records) == []

    def curves():
        (label,) = [text for text in alternatives(chrome) if text.startswith("Accuracy per round")]
        assert "NaN" not in chrome.find_element("id", "detail").get_attribute("innerHTML")
        return label

    assert "method-10 ends at" in curves()
    assert "method-11" not in curves(), "a method with rounds is not done after one"
    click(chrome, "[data-filter='Metric:pooled']")
    assert "method-11 ends at 30.00 % after 3 rounds" in curves()
    assert console_errors(chrome) == []


def test_results_that_lack_an_accuracy_are_shown_by_the_others(chrome, tmp_path):
    records = few()
    for record, gamma in zip(runs(records)[1:], (1.0, 2.0), strict=True):
        record |= {"method": "swept", "settings": {"gamma": gamma}, "accuracy": {"pooled": 0.5 + gamma / 10}}
    assert opened(chrome, tmp_path, records) == []

    def shown():
        return [row.text.split()[0] for row in chrome.find_elements("css selector", "table.main td:nth-child(2)")]

    assert shown()[1:] == ["–", "–"]
    assert "Nothing to draw with these filters." in texts(chrome, "#sensitivity .empty")
    click(chrome, "[data-filter='Metric:pooled']")
    assert shown()[1:] == ["60.00", "70.00"]
    assert any("1 gives 60.00 %, 2 gives 70.00 %" in label for label in alternatives(chrome))
    assert console_errors(chrome) == []


def test_figures_on_the_edge_of_rounding_are_those_of_the_tables(chrome, tmp_path):
    # As written down, 93.125 and 93.115 both round to 93.12.
    pairs = [(0.9, 0.9), (0.93125, 0.93125), (0.93115, 0.93115), (0.75, 0.75125), (0.5, 0.50125)]
    records = few(methods=5, seeds=2)
    for seed in (0, 1):
        for record, pair in zip(runs(records)[5 * seed :], pairs, strict=False):
            record["accuracy"] = dict.fromkeys(record["accuracy"], pair[seed])
    assert opened(chrome, tmp_path, records) == []
    table = accuracy_table(load_results([tmp_path / "results.jsonl"]), "client_mean")
    shown = chrome.find_elements("css selector", "table.main td:nth-child(2)")
    assert [" ".join(cell.text.split()) for cell in shown] == [row[1].text for row in table.rows]
    assert [row[1].text[:5] for row in table.rows[1:3]] == ["93.12", "93.12"]
    marks = ["", "best", "second"]
    assert [cell.get_attribute("class") for cell in shown] == [marks[row[1].rank] for row in table.rows]


def test_single_clients_are_of_one_seed_that_all_methods_finished(chrome, tmp_path):
    records = few(alphas=(0.1, 1.0), seeds=2)
    for record in records:
        record["names"] = [f"{record['seed']}-{k}" for k in range(4)]
        if record["seed"] == 0 and record.get("label") == "method-01" and record["partition"] == "dirichlet:1.0":
            record |= {"status": "failed", "error": "no luck"}
    assert opened(chrome, tmp_path, records) == []
    _, payload, _ = taken_apart(page_of(tmp_path, records))
    assert [column["seed"] for column in payload["columns"]] == [0, 1]
    for c, (partition, seed) in enumerate([("dirichlet:0.1", 0), ("dirichlet:1.0", 1)]):
        here = [record for record in records if (record["partition"], record["seed"]) == (partition, seed)]
        known = {series["method"]: series["x"] for series in panel_of(payload, "clients", c)["series"]}
        assert known == {
            m: [round(100 * right / n, 1) for right, n in zip(run["correct"], run["tested"], strict=True)]
            for m, run in enumerate(runs(here))
        }
        assert payload["clients"][c]["facts"]["test samples"] == runs(here)[0]["tested"]
        counts = panel_of(payload, "classes", c)["heat"]["values"]
        assert [list(row) for row in zip(*counts, strict=True)] == here[0]["class_counts"]
        assert payload["clients"][c]["names"] == here[0]["names"]
        Select(chrome.find_element("id", "setting")).select_by_index(c)
        clients, heat = texts(chrome, "#detail .card")[-2:]
        assert f"seed {seed}" in clients
        assert f"seed {seed}" in heat


def test_where_every_seed_failed_once_the_one_that_most_finished_is_shown(tmp_path):
    records = few(methods=4, seeds=2)
    for record in runs(records):
        if (record["seed"], record["label"]) in {(0, "method-01"), (0, "method-02"), (1, "method-03+FT")}:
            record |= {"status": "failed", "error": "no luck"}
    _, payload, _ = taken_apart(page_of(tmp_path, records))
    assert payload["columns"][0]["seed"] == 1
    assert [series["method"] for series in panel_of(payload, "clients", 0)["series"]] == [0, 1, 2]


def test_names_cannot_become_markup(chrome, tmp_path):
    records = list(comparison(methods=3, clients=(4,), alphas=(1.0,), seeds=1, rounds=3))
    for record in records:
        if record["kind"] == "run":
            record["label"] += HOSTILE
            record["settings"] = {HOSTILE: HOSTILE}
            record["matrices"] = {HOSTILE: weights([HOSTILE] * 4)["aggregation weights"]}
        else:
            record["names"] = [HOSTILE] * 4
            record["classes"] = [HOSTILE] * 10
        record["data"] = HOSTILE
    records.append(records[-1] | {"key": "z", "status": "failed", "error": HOSTILE})
    path = write(tmp_path / "results.jsonl", records)
    page = write_page(load_results([path]), tmp_path / "report.html", title=HOSTILE)
    resize(chrome, 1000, 800)
    chrome.get(page.as_uri())
    assert chrome.execute_script("return window.hacked") is None
    assert chrome.execute_script("return document.querySelectorAll('img').length") == 0
    assert HOSTILE.replace("\u2028", "").split("&")[0] in chrome.execute_script("return document.body.innerText")
    assert console_errors(chrome) == []


def test_a_large_comparison_is_small_and_quick(chrome, tmp_path):
    path = write(tmp_path / "results.jsonl", comparison(methods=20, seeds=5))
    results = load_results([path])
    assert len(results.runs) == 20 * 12 * 5
    page = write_page(results, tmp_path / "report.html", title="Large")
    assert page.stat().st_size < 3_000_000
    resize(chrome, 1280, 900)
    measures = cost_of_opening(chrome, page)
    assert measures["TaskDuration"] < 1  # a fifth of it where nothing else runs
    assert measures["Nodes"] < 10_000
    assert len(methods(chrome)) == 20
    assert console_errors(chrome) == []


def test_single_clients_of_very_many_stay_within_bounds(tmp_path):
    path = write(tmp_path / "results.jsonl", comparison(methods=20, clients=(1000,), alphas=(0.1, 1.0, 10.0), seeds=1))
    page = write_page(load_results([path]), tmp_path / "report.html", title="Many clients")
    assert page.stat().st_size < 3_000_000
