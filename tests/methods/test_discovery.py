"""A method's file is found by its folder, and imported on first use."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram.protocol.registry import Registry

PACKAGE = Path(fg.__file__).parent


def python(code):
    """Return the output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_typed_names_are_those_of_the_folder():
    folder = {cls.__name__ for cls in fg.registry.values() if cls.__module__.startswith("fedgram.methods.")}
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    methods = [line for line in typed.body if line.module.startswith("fedgram.methods.")]  # the store is typed, too
    assert {alias.name for line in methods for alias in line.names} == folder
    assert {alias.name for line in typed.body for alias in line.names} == folder | {"Store"}
    assert folder <= set(fg.__all__)
    assert folder <= set(dir(fg))
    assert {name for name in dir(fg) if not name.startswith("__")} == {*fg.__all__, "data"}
    assert all(getattr(fg, name).__name__ == name for name in fg.__all__ if name in folder)


def test_importing_fedgram_reads_no_method_and_nothing_heavy():
    heavy = ("torch", "rich", "typer", "click", "sklearn", "matplotlib", "pyarrow", "flwr", "ray", "PIL", "pandas")
    loaded = python(f"import sys, fedgram; print(*[m for m in {heavy} if m in sys.modules]); print(*sys.modules)")
    assert not set(heavy).intersection(loaded)
    assert not [name for name in loaded if name.startswith("fedgram.methods.")]


@pytest.mark.parametrize("asked", ["fedgram.AFL", "fedgram.registry['AFL']", "'afl' in fedgram.registry"])
def test_one_name_reads_one_file(asked):
    loaded = python(f"import sys, fedgram; {asked}; print(*sys.modules)")
    analytic = "fedgram.methods.analytic"
    assert [name for name in loaded if name.startswith("fedgram.methods.")] == [analytic, f"{analytic}.afl"]


def test_a_method_whose_file_has_another_name_is_found():
    assert python("import fedgram; print(fedgram.registry['fedavg+ft'].__name__, fedgram.FedProxFT.name)") == [
        "FedAvgFT",
        "fedprox+ft",
    ]


def test_messages_of_methods_that_nobody_asked_for_are_read(tmp_path):
    rng = np.random.default_rng(0)
    clients = [fg.Client(f"c{k}", rng.normal(size=(20, 4)), np.arange(20) % 2) for k in range(2)]
    fg.APFL(dim_primary=8, dim_refine=8).fit(clients).save(tmp_path / "fit")
    code = (
        "import sys, fedgram; name = 'fedgram.methods.analytic.apfl'; print(name in sys.modules);"
        f"fit = fedgram.load({str(tmp_path / 'fit')!r}); print(name in sys.modules, type(fit.model).__name__)"
    )
    assert python(code) == ["False", "True", "TwoStreams"]


def test_nobody_takes_the_name_of_a_method_that_was_not_read_yet():
    code = (
        "import fedgram as fg; from dataclasses import dataclass\n"
        "try: fg.register(dataclass(frozen=True, kw_only=True)(type('Mine', (fg.Method,), {'name': 'fedprox+ft'})))\n"
        "except ValueError as error: print(error)"
    )
    assert "'fedprox+ft' is taken by fedgram.methods.gradient.finetuning.FedProxFT" in " ".join(python(code))


def test_unknown_attributes_are_as_in_any_module():
    with pytest.raises(AttributeError, match="module 'fedgram' has no attribute 'Nothing'"):
        fg.Nothing  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fg.nothing  # noqa: B018
    assert not hasattr(fg, "__wrapped__")


def test_a_new_file_in_a_folder_is_a_method(tmp_path, monkeypatch):
    (tmp_path / "house" / "room").mkdir(parents=True)
    for folder in (tmp_path / "house", tmp_path / "house" / "room"):
        (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    fresh = Registry()
    (tmp_path / "house" / "room" / "newest.py").write_text(
        "from dataclasses import dataclass\nimport fedgram as fg\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Newest(fg.AFL):\n    'Newest — of a test.'\n\n"
        "import sys\nsys.modules['the_registry_of_a_test'].register(Newest)\n"
    )
    monkeypatch.setitem(sys.modules, "the_registry_of_a_test", fresh)
    fresh.discover("house", [str(tmp_path / "house")])
    assert "house.room.newest" not in sys.modules
    assert fresh["newest"].__module__ == "house.room.newest"
    assert list(fresh) == ["newest"]
