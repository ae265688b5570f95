"""Rules of the source tree beyond linters: methods are known by their declarations, and files by unique names."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import fedgram as fg

SOURCE = Path(fg.__file__).parent
# The name of the package, which one method shares: keys of the metadata that files and records carry.
PACKAGE_KEYS = {(file, "fedgram") for file in ("core/container.py", "exchange/format/fgm.py", "experiments/runner.py")}
# Kinds of models in a regression table, which two methods are called after.
PACKAGE_KEYS |= {("inference/table.py", kind) for kind in ("logistic", "poisson")}
NAMED_TWICE = {"study.py"}  # the study, and its command
OUTSIDE = sorted(path for path in SOURCE.rglob("*.py") if "methods" not in path.relative_to(SOURCE).parts)


def texts(node):
    """Yield the texts in an expression that is compared: itself, or the items of a collection."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from texts(item)
    elif isinstance(node, ast.Call):  # frozenset({…}), tuple([…])
        for item in node.args:
            yield from texts(item)


def branches(source, names):
    """Yield the line and name of each comparison, `in`-test, match case and dictionary key with one of these names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            found = [text for side in (node.left, *node.comparators) for text in texts(side)]
        elif isinstance(node, ast.MatchValue):
            found = list(texts(node.value))
        elif isinstance(node, ast.Dict):
            found = [text for key in node.keys if key is not None for text in texts(key)]
        else:
            continue
        for text in found:
            if text in names:
                yield node.lineno, text


def test_nothing_outside_methods_branches_on_a_methods_name():
    names, found, used = set(fg.registry), [], set()
    for path in OUTSIDE:
        where = path.relative_to(SOURCE).as_posix()
        for line, name in branches(path.read_text(encoding="utf-8"), names):
            used.add((where, name))
            if (where, name) not in PACKAGE_KEYS:
                found.append(f"{where}:{line}: {name!r}")
    assert not found
    assert used == PACKAGE_KEYS  # exceptions that are no longer needed must be removed


@pytest.mark.parametrize(
    "violation",
    [
        "if method.name == 'apfl': pass",
        "if 'fedlogit' != method: pass",
        "if method in ('afl', 'fedhip'): pass",
        "if method not in {'fedavg'}: pass",
        "if method in frozenset(['fedavg']): pass",
        "match method:\n    case 'apfl': pass",
        "match method:\n    case 'other' | 'apfl': pass",
        "STEPS = {'fedlogit': 'gradient'}",
        "class A:\n    def f(self):\n        return {**more, 'local': 1}[self.name]",
    ],
)
def test_a_made_up_branch_is_found(violation):
    assert len(list(branches(violation, set(fg.registry)))) >= 1


def test_defaults_and_examples_may_name_a_method():
    allowed = "def f(method='apfl'):\n    'For example apfl.'\n    return registry.get(method or 'afl')"
    assert not list(branches(allowed, set(fg.registry)))


def test_nothing_outside_methods_imports_one():
    """The package itself does, so that `fg.AFL` is there."""
    for path in OUTSIDE:
        if path == SOURCE / "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in modules if name.startswith("fedgram.methods.")], path


def test_one_file_decides_on_threads():
    """No other file sets a number of threads, but for the bounds of a process that reads a stranger's ONNX file."""
    own = {"core/threads.py", "features/backbones/onnxmodel.py"}
    words = ("set_num_threads", "threadpoolctl", "intra_op_num_threads", "NUM_THREADS", "sched_getaffinity")
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in words)
    }
    assert found <= own


def test_base_names_are_unique():
    """A name says what is in a file, so that two files with one name have at least one wrong name."""
    counts = Counter(path.name for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    assert {name for name, count in counts.items() if count > 1} <= NAMED_TWICE
