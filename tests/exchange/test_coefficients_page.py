"""The page of a regression table: what it says, where plots put their marks, and how a reader sees it in a browser."""

import base64
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram import __version__
from fedgram.core.hashing import readable
from fedgram.exchange.pages.coefficients_page import MOST_ESTIMATES, WIDTH, coefficients_page, ticks
from fedgram.exchange.store.ledger import Entry
from fedgram.inference.linear import LeastSquares, Sums
from fedgram.inference.site_effects import BySite
from fedgram.inference.table import INTERCEPT, Coefficient, Coefficients, Gap, Heterogeneity, SiteEstimate, Sites
from fedgram.studies import Study
from support.browser import browser, console_errors, prefer, resize
from support.campaign import examples
from support.page import contrasts, texts

HOSTILE = "<script>alert('x')</script> & \x1b[2J Straße Ω of a very long name indeed"
SITES = ("north", "south", HOSTILE, "west")
COLUMNS = {"age": "age", "bmi": "bmi", "stage=II": "stage", "stage=III": "stage"}
STUDY = Study.parse("""
[study]
name = "<i>costs</i>-2026"
outcome = "cost"
[columns.cost]
kind = "number"
unit = "EUR"
[columns.age]
kind = "number"
unit = "years"
[columns.bmi]
kind = "number"
unit = "kg/m²"
missing = "mean"
[columns.stage]
kind = "category"
values = ["I", "II", "III"]
""")
LEDGER = Entry.after(None, "open", time="2026-01-01T00:00:00Z", study="0f3a", genesis="", key="")


def a_site(rng, n):
    age, bmi, stage = rng.normal(60, 12, n), rng.normal(26, 4, n), rng.integers(0, 3, n)
    cost = 900 + 35 * age + 120 * bmi + 700 * stage + rng.normal(0, 900, n)
    return Sums.of(np.column_stack([age, bmi, stage == 1, stage == 2, cost]), [*COLUMNS, "cost"])


def some_table():
    """Return a table with every section: tests, VIF, site effects, differences, gaps and notes."""
    rng = np.random.default_rng(0)
    sites = {name: a_site(rng, n) for name, n in zip(SITES, (200, 30, 120, 90), strict=True)}
    first, *rest = sites.values()
    by_site = BySite(LeastSquares(sum(rest, first)))
    for name, sums in sites.items():
        by_site.add(name, sums, alone=True)
    table = by_site.plain(COLUMNS, unit="EUR")
    return replace(
        table,
        aliased=("weight <kg>",),
        notes=(*table.notes, "<b>7</b> cells were imputed."),
        sites=replace(table.sites, residual_sd=dict.fromkeys(SITES, 901.5)),
        heterogeneity=by_site.heterogeneity(),
        missing=tuple(Gap("bmi", name, 3, "imputed") for name in SITES),
    )


TABLE = some_table()


def plots(page):
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_the_page_says_all_that_the_table_has():
    page = coefficients_page(TABLE, study=STUDY, entry=LEDGER)
    for line in TABLE.cells():
        row = page[page.index(f'<th scope="row">{line[0]}') :].partition("</tr>")[0]
        figures = re.findall(r'<td class="number">(.*?)</td>', row)
        assert figures == [text.replace("<", "&lt;") for text in line[1:]]
    for heading, _ in TABLE.sections():
        assert f"<h2>{heading}</h2>" in page
    assert "years" in page
    assert "weight &lt;kg&gt;" in page
    assert "901.5000" in page
    for said in (readable(STUDY.fingerprint), LEDGER.hash, f"fedgram {__version__}", "2026-01-01T00:00:00Z"):
        assert f"{said}</dd>" in page


def test_names_of_others_are_escaped():
    page = coefficients_page(TABLE, study=STUDY)
    assert "<script" not in page
    assert "<i>costs" not in page
    assert "<b>7" not in page
    assert "\x1b" not in page
    assert r"\x1b[2J" in page


def test_a_ridge_without_study_and_sites_has_a_page():
    rows = (Coefficient(INTERCEPT, "", 1.0), Coefficient("age", "age", 2.0))
    page = coefficients_page(Coefficients("linear", "cost", "", "Ridge", "none", rows, summary={"n": 9, "ridge": 1.0}))
    assert page.count('<td class="number">–</td>') == 2 * 5
    assert "Sites" not in page
    assert "Ledger" not in page


def test_a_logistic_table_has_ratios():
    rows = (Coefficient("age", "age", 0.5, 0.1, 5.0, 0.0, 0.3, 0.7),)
    page = coefficients_page(Coefficients("logistic", "ill", "", "", "", rows, summary={"pseudo_r_squared": 0.25}))
    figures = re.findall(r'<td class="number">(.*?)</td>', page)
    assert figures[-3:] == [f"{np.exp(value):.3f}" for value in (0.5, 0.3, 0.7)]
    assert "<b>0.25</b><span>Pseudo R-squared</span>" in page


def test_the_source_of_a_pooled_table_has_no_sites():
    page = coefficients_page(replace(TABLE, sites=Sites({}), heterogeneity=(), missing=()))
    assert "<h2>Sites</h2>" not in page
    assert plots(page) == []


ESTIMATES = st.tuples(st.floats(-1e4, 1e4), st.floats(1e-3, 1e4))


@given(st.lists(ESTIMATES, min_size=2, max_size=6), st.sampled_from([1e-6, 1.0, 1e9]))
@examples(40)
def test_marks_are_where_the_numbers_are(found, unit):
    """Squares and diamonds are in proportion to the estimates, nothing is outside, and a cut bar has an arrow."""
    sites = tuple(SiteEstimate(f"site {k}", unit * value, unit * se) for k, (value, se) in enumerate(found))
    weights = np.array([site.se for site in sites]) ** -2.0
    values = np.array([site.estimate for site in sites])
    pooled, se = float(weights @ values / weights.sum()), float(weights.sum() ** -0.5)
    row = Coefficient("age", "age", pooled, se, 1.0, 0.5, pooled - 2 * se, pooled + 2 * se)
    one = Heterogeneity("age", sites, {}, pooled, se, 1.0, len(sites) - 1, 0.5, 0.0)
    table = Coefficients("linear", "cost", "", "", "", (row,), heterogeneity=(one,))
    [plot] = plots(coefficients_page(table))
    squares = [float(each.get("x")) + float(each.get("width")) / 2 for each in plot.iter("rect")]
    diamonds = [[float(point.split(",")[0]) for point in each.get("points").split()] for each in plot.iter("polygon")]
    places = [*squares, *(diamond[1] for diamond in diamonds)]
    told = [*values, pooled, pooled]
    assert len(squares) == len(sites)
    assert len(diamonds) == 2
    scale = max(told) - min(told)
    if scale > 0.1 * max(site.se for site in sites):  # else places are the same to a tenth of a pixel or so
        shares = (np.array(told) - told[0]) / scale
        slope, start = np.polyfit(shares, places, 1)
        assert slope > 0
        np.testing.assert_allclose(start + slope * shares, places, atol=0.3)
    bars = [each for each in plot.iter("line") if each.get("class") == "bar"]
    ends = [float(bar.get(end)) for bar in bars for end in ("x1", "x2")]
    assert all(0 <= end <= WIDTH for end in ends + places)
    arrows = list(plot.iter("polyline"))
    at_the_edge = [end for end in ends if end <= 12.05 or end >= WIDTH - 12.05]
    assert len(arrows) == len(at_the_edge)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
@examples(100)
def test_ticks_are_round_and_inside(low, wide):
    found = ticks(low, low + wide)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-9 * wide <= value <= low + wide * (1 + 1e-9) for value, _ in found)
    assert [float(text) for _, text in found] == pytest.approx([value for value, _ in found], rel=1e-6, abs=1e-9 * wide)
    assert len({text for _, text in found}) == len(found)


def test_a_page_of_very_many_estimates_stays_small():
    [one] = [each for each in TABLE.heterogeneity if each.term == "age"]
    many = replace(one, sites=tuple(replace(one.sites[0], site=f"{k}") for k in range(MOST_ESTIMATES // 2)))
    page = coefficients_page(replace(TABLE, heterogeneity=(many, many, many, many)))
    assert len(plots(page)) == 2
    assert "Of 4 terms 2 are drawn" in page


def test_sites_that_cannot_estimate_a_term_are_named_with_the_reason():
    reason = "the term does not vary there"
    one = replace(TABLE.heterogeneity[0], left_out={"east": reason, "<b>": reason, "west": "it has too few rows"})
    none = Heterogeneity("year", (), {"north": reason}, None, None, None, 0, None, None)
    page = coefficients_page(replace(TABLE, heterogeneity=(one, none)))
    assert "Not shown: east, &lt;b&gt; (the term does not vary there)." in page
    assert "Not shown: west (it has too few rows)." in page
    assert "No site can estimate year by itself." in page
    assert len(plots(page)) == 1


# In a browser
@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    path = folder / "coefficients.html"
    path.write_text(coefficients_page(TABLE, study=STUDY, entry=LEDGER), encoding="utf-8")
    with browser(folder / "profile") as chrome:
        chrome.get(path.as_uri())
        yield chrome


def in_a_browser(test):
    return pytest.mark.browser(pytest.mark.xdist_group("browser")(test))


@in_a_browser
def test_it_asks_the_network_for_nothing_and_has_no_errors(page):
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert console_errors(page) == []
    assert page.title == "Linear regression of cost [EUR], <i>costs</i>-2026"


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390])
def test_every_text_is_inside_and_has_contrast(page, scheme, width):
    prefer(page, scheme)
    resize(page, width, 900, phone=width < 500)
    page.execute_script("for (const node of document.querySelectorAll('details')) node.open = true")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    found = contrasts(page)
    assert {text: ratio for ratio, text in found if ratio < 4.5} == {}
    assert len(found) > 150
    sizes = page.execute_script(
        "return [...document.querySelectorAll('svg text')].map((node) => node.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 11  # pixels on the screen: the plots shrink no text on a telephone


@in_a_browser
def test_plots_have_names_and_tables_can_be_scrolled_by_keyboard(page):
    images = page.find_elements("css selector", "svg")
    assert [image.accessible_name for image in images] == [f"Forest plot of {term}" for term in COLUMNS]
    assert {image.aria_role for image in images} <= {"img", "image"}
    regions = page.find_elements("css selector", ".wide")
    assert all(region.get_attribute("tabindex") == "0" and region.accessible_name for region in regions)
    assert texts(page, ".forest h3") == list(COLUMNS)


@in_a_browser
def test_it_prints_without_dark_colours(page):
    prefer(page, "dark")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    ink = page.execute_script("return getComputedStyle(document.body).color")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert ink == "rgb(28, 32, 36)"
    a4 = {"paperWidth": 8.27, "paperHeight": 11.69}
    sheets = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", a4)["data"])
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 3


@in_a_browser
def test_long_names_stay_inside_a_telephone(page, tmp_path):
    long = "m" * 90
    rows = tuple(replace(row, term=row.term + long) for row in TABLE.rows)
    forest = replace(TABLE.heterogeneity[0], term=long, left_out={long: "the term does not vary there"})
    sites = replace(TABLE.sites, rows={long: 1000}, residual_sd={long: 1.0})
    table = replace(TABLE, outcome=long, unit=long, rows=rows, sites=sites, heterogeneity=(forest,), aliased=(long,))
    (tmp_path / "long.html").write_text(coefficients_page(table, study=STUDY), encoding="utf-8")
    before = page.current_url
    page.get((tmp_path / "long.html").as_uri())
    resize(page, 390, 900, phone=True)
    wide = page.execute_script("return document.documentElement.scrollWidth")
    page.get(before)
    assert wide <= 390
