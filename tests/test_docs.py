"""Examples in README, CONTRIBUTING and docs run, and named files, tests and attributes exist."""

import inspect
import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks, nets
from fedgram.data import digits
from fedgram.features import extract
from fedgram.methods.gradient.gradient_method import GradientMethod
from fedgram.protocol.transport import Reply, Transport

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
TEXTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *PAGES]
ADDING = "docs/architecture/adding-a-method.md"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name):
    return re.findall(r"```python\n(.*?)```", read(name), re.DOTALL)


def prose(name):
    """Return a page without its blocks of code."""
    return re.sub(r"```.*?```", "", read(name), flags=re.DOTALL)


def some_names():
    """Return the names that the README's examples assume."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)), np.arange(40) % 2
    words = np.where(y, "well", "ill")
    clients = [fg.Client(f"ward-{k}", x[k::5], words[k::5]) for k in range(5)]
    moments = fg.Moments.of(x, words, classes=["ill", "well"], features="lite0:96")
    late = fg.Client("late", x[:9], words[:9])
    return {
        "fg": fg,
        "x": x,
        "y": words,
        "x_new": x[:3],
        "clients": clients,
        "uploads": [moments, moments],
        "late": late,
    }


def test_readme_begins_with_a_fit():
    names = {}
    exec(blocks("README.md")[0], names)
    assert 0.9 < names["fit"].evaluation.client_mean <= 1


@pytest.mark.slow
def test_readme_begins_with_lines_that_type_checkers_accept(tmp_path):
    api = pytest.importorskip("mypy.api")
    (tmp_path / "five.py").write_text(blocks("README.md")[0], encoding="utf-8")
    told, errors, status = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "five.py")])
    assert status == 0, told + errors


@pytest.mark.parametrize("name", sorted(name for name in fg.__all__ if inspect.isclass(getattr(fg, name))))
def test_signatures_can_be_read_by_people(name):
    shown = str(inspect.signature(getattr(fg, name)))
    assert " object at 0x" not in shown
    assert "Bounds(" not in shown


def test_readme_of_ones_own_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = some_names()
    exec(blocks("README.md")[1], names)
    assert names["fit"].contributors == tuple(client.name for client in names["clients"])


def test_readme_adds_estimators():
    pytest.importorskip("sklearn")
    [block] = blocks("README.md")[2:]
    names = some_names()
    x, y = names["x"], names["y"]
    names |= {"x_north": x[:15], "y_north": y[:15], "x_south": x[15:], "y_south": y[15:]}
    exec(block, names)
    np.testing.assert_allclose(names["pooled"].coef_, names["GramClassifier"]().fit(x, y).coef_, rtol=1e-9)


def test_contributing_shows_a_whole_method(registered):
    names = {}
    for block in blocks("CONTRIBUTING.md"):
        exec(block, names)
    assert "average" in registered
    assert checks.CHECKS


def test_adding_a_method_shows_whole_methods(registered):
    names = {}
    for block in blocks(ADDING):
        exec(block, names)
    assert names["fit"].evaluation.client_mean > 0.5
    assert names["Held"](mu=0.5, rounds=1).fit(names["clients"], classes=10).model is not None
    plain = fg.FedAvg(momentum=0.0, rounds=2).fit(names["clients"], classes=10).rounds
    assert names["Onward"](beta=0.0, rounds=2).fit(names["clients"], classes=10).rounds == plain
    # What clients remember matters from the second round on.
    assert [one == other for one, other in zip(names["onward"].rounds, plain, strict=False)] == [True, False]


def test_adding_an_engine_and_a_backbone(tmp_path):
    names = {}
    for block in blocks("docs/architecture/adding-an-engine.md"):
        exec(block, names)
    clients = checks.some_clients()
    fit = fg.FedGram().fit(clients, classes=10, engine=names["OneByOneEngine"]())
    assert np.allclose(fit.model.weights, fg.FedGram().fit(clients, classes=10).model.weights)
    data = digits()
    features = extract(data.x, names["Brightness"](), data_fingerprint=data.fingerprint, cache=tmp_path)
    assert features.shape == (len(data.x), 2)


def seen_by_serve():
    """Return the objects that a method gets: the clients for the server, and one client for its step."""
    seen = []

    class Looks(fg.Method):
        def serve(self, clients):
            seen.append(clients)
            clients.each(self.look)

        @fg.step
        def look(self, client):
            seen.append(client)

    Looks().fit([fg.Client("one", np.eye(4), [0, 1, 0, 1])], classes=2)
    return seen


def public(thing):
    """Return the attributes of a class or of an object that are meant to be used, without those of its base."""
    cls = thing if inspect.isclass(thing) else type(thing)
    names = set(dir(cls)) | ({field.name for field in fields(cls)} if is_dataclass(cls) else set())
    names |= set() if inspect.isclass(thing) else set(vars(thing))
    base = next((base for base in (fg.Method, tuple) if issubclass(cls, base) and cls is not base), object)
    return {name for name in names if not name.startswith("_")} - set(dir(base))


def documented(page, heading):
    """Return the names in the first column of the tables of a section."""
    section = re.split(r"\n#{2,3} ", read(page).partition(f"\n### `{heading}`\n")[2])[0]
    cells = re.findall(r"^\| (`.*?) \| ", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`\*{0,2}(\w+)", cell)}


@pytest.mark.parametrize(
    "heading", ["Method", "Clients", "Reply", "ClientSide", "GradientMethod", "Plan", "Hooks", "Now"]
)
def test_adding_a_method_names_every_attribute(heading):
    clients, client = seen_by_serve()
    described = {"Clients": clients, "ClientSide": client, "Reply": Reply, "Method": fg.Method}
    described |= {"GradientMethod": GradientMethod, "Plan": nets.Plan, "Hooks": nets.Hooks, "Now": nets.Now}
    have, said = public(described[heading]), documented(ADDING, heading)
    assert have <= said, f"{ADDING} does not describe {sorted(have - said)} of {heading}"
    known = have | set(dir(described[heading]))
    assert said <= known, f"{ADDING} describes {sorted(said - known)}, which {heading} has not"


def test_adding_an_engine_names_every_attribute():
    page = prose("docs/architecture/adding-an-engine.md")
    assert {name for name in public(Transport) | set(Transport.__annotations__) if f"`{name}" not in page} == set()


def test_every_public_name_is_in_the_api_reference():
    shown = {name for page in PAGES for name in re.findall(r"^::: fedgram\.([\w.]+)$", read(page), re.MULTILINE)}
    elsewhere = {"errors": "core.errors", "partition": "data.partition", "engines": "InProcess"}
    elsewhere |= {"registry": "register", "methods": "AFL"}
    assert {name for name in fg.__all__ if elsewhere.get(name, name) not in shown} == set()


def pages_of(entry):
    """Return the pages of an entry of the navigation: a page, a named entry, or a list of entries."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages_of(part)]


def test_every_page_is_in_the_navigation():
    nav = tomllib.loads(read("zensical.toml"))["project"]["nav"]
    assert sorted(f"docs/{page}" for page in pages_of(nav)) == PAGES


def anchors(name):
    """Return a page's headings as links name them."""
    titles = re.findall(r"^#+ (.+)$", prose(name), re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r"^::: ([\w.]+)$", read(name), re.MULTILINE))


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name):
    broken = []
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", prose(name)):
        path = ((ROOT / name).parent / target).resolve() if target else ROOT / name
        if not path.exists() or (anchor and anchor not in anchors(path.relative_to(ROOT))):
            broken.append(f"{target}#{anchor}")
    assert not broken


def test_the_citation_is_of_this_version():
    assert f"\nversion: {fg.__version__}\n" in read("CITATION.cff")


def test_files_and_tests_that_are_named_exist():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    files = {path.name for path in (ROOT / "tests").rglob("*.py")}
    missing = []
    for name in TEXTS:
        text = read(name)
        for path in re.findall(r"\b(?:tests|examples|src|benchmarks)/[\w/.-]+\.(?:py|toml)", text):
            missing += [] if (ROOT / path).exists() else [f"{name}: {path}"]
        for test in re.findall(r"`(test_[a-z]+_\w+|test_\w+\.py)`", text):
            missing += [] if test in tests | files else [f"{name}: {test}"]
    # CONTRIBUTING speaks of a file that is still to be written.
    assert [what for what in missing if not what.endswith("/yours.py")] == []
