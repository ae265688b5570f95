"""Methods by a file or by module:Class: named code is read, and failures have a remedy."""

import sys

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import FedgramError, InvalidParameter, UnknownName
from fedgram.protocol.named_methods import is_code, resolve
from support.own_method import forget_afterwards, write_method


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    forget_afterwards(monkeypatch)


def test_a_file_is_a_method(tmp_path):
    path = write_method(tmp_path / "own.py", "Fromfile")
    cls = resolve(path)
    assert cls.name == "fromfile"
    assert resolve(path) is cls, "it is read once"
    assert resolve(f"{path}:Fromfile") is cls
    assert fg.registry["fromfile"] is cls, "it is registered, although it does not say so"
    rng = np.random.default_rng(0)
    clients = [fg.Client(f"c{k}", rng.normal(size=(20, 3)), np.arange(20) % 2) for k in range(2)]
    fit = cls(ridge=2.0).fit(clients)
    want = np.mean([fg.Moments.of(c.x, c.y, classes=2).solve(2.0) for c in clients], axis=0)
    np.testing.assert_allclose(fit.model.weights, want)


def test_a_module_is_a_method(tmp_path, monkeypatch):
    write_method(tmp_path / "a_package" / "inner.py", "Frommodule")
    (tmp_path / "a_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = resolve("a_package.inner:Frommodule")
    assert cls is sys.modules["a_package.inner"].Frommodule
    assert resolve("frommodule") is cls
    assert resolve("fedgram.methods.analytic.afl:AFL") is fg.AFL


def test_names_are_looked_up_and_nothing_else_is_run():
    assert resolve("AFL") is fg.AFL
    for name in ("afl", "fedavg+ft", "os", "fedgram.methods.analytic.afl", "a/b", "x.pyc", ""):
        assert not is_code(name)
    with pytest.raises(UnknownName, match="unknown method 'alf': did you mean 'afl'"):
        resolve("alf")


TWO = "import fedgram as fg\nclass One(fg.AFL): pass\nclass Two(fg.AFL): pass\n"
TAKEN = (
    "from dataclasses import dataclass\nimport fedgram as fg\n"
    "@dataclass(frozen=True, kw_only=True)\nclass Mine(fg.AFL):\n    name = 'fedhip'\n"
)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "there is no such file; give the path of a Python file"),
        ("def broken(:\n", "the file cannot be run: SyntaxError"),
        ("import no_such_package\n", "the file cannot be run: ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit(3)\n", "the file cannot be run: SystemExit"),
        ("import fedgram as fg\nfrom fedgram import AFL\n", "no class that extends fg.Method and defines serve"),
        ("import fedgram as fg\nclass Idle(fg.Method): pass\n", "no class that extends fg.Method and defines serve"),
        (TWO, r"it has One, Two: name one, as in .*bad.py:One"),
        ("import fedgram as fg\nclass Bare(fg.AFL): pass\n", "decorate Bare with @dataclass"),
        (TAKEN, "'fedhip' is taken by fedgram.methods.analytic.fedhip.FedHiP"),
    ],
)
def test_files_that_are_no_method_are_refused(source, words, tmp_path):
    path = tmp_path / "bad.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(InvalidParameter, match=f"method '.*bad.py': .*{words}"):
        resolve(str(path))


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(InvalidParameter, match="there is no such file"):
        resolve(str(tmp_path / "folder.py"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "no_such_package.module:Average",
            "no module 'no_such_package': install it, or put its folder into PYTHONPATH",
        ),
        ("fedgram.no_such:Average", "no module 'fedgram.no_such'"),
        ("fedgram.models:LinearModel", "unknown method in fedgram.models: class 'LinearModel'"),
        ("fedgram.protocol.method:Method", "unknown method in .*: class 'Method'"),
        ("fedgram.methods.analytic.afl:Afl", "class 'Afl': .*known: AFL"),
        ("a_module_that_fails:Average", "a_module_that_fails cannot be imported: ZeroDivisionError"),
        ("a_module_that_needs:Average", "a_module_that_needs needs no_such_package, which is not installed"),
    ],
)
def test_modules_without_the_method_are_refused(text, words, tmp_path, monkeypatch):
    (tmp_path / "a_module_that_fails.py").write_text("1 / 0\n")
    (tmp_path / "a_module_that_needs.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FedgramError, match=words):
        resolve(text)


def test_a_fit_of_an_unknown_method_says_what_to_import(tmp_path):
    path = tmp_path / "late.py"
    path.write_text(
        "from dataclasses import dataclass\nimport fedgram as fg\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Late(fg.AFL):\n    'Late — of a test.'\n"
    )
    cls = resolve(str(path))
    client = fg.Client("a", np.eye(3), [0, 1, 1])
    cls().fit([client, fg.Client("b", 2 * np.eye(3), [0, 1, 0])]).save(tmp_path / "fit")
    loaded = fg.load(tmp_path / "fit")
    del fg.registry._methods["late"]
    with pytest.raises(InvalidParameter, match="'late' that is not known here: import the file or package"):
        loaded.summarize(client)
    fg.registry.register(cls)
    assert fg.load(tmp_path / "fit").summarize(client).n == 3
