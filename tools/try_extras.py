"""Installs fedgram with the newest versions of its requirements, the core and each extra alone, and tries the smallest
job of each: `make test-newest`.

    python tools/try_extras.py                 the core, then every extra
    python tools/try_extras.py core nets       some of them

Each has a virtual environment of its own, so another extra cannot supply a missing requirement.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
# A plain "torch" brings gigabytes for graphics cards along.
PINNED = ("torch==2.13.0",)
# Extras without a job: `make test-newest` runs the tests with dev's tools, `all` is the sum of the others.
NOT_TRIED = {"all", "dev"}


def fedgram(*arguments: str) -> None:
    """Run the command line of this program's environment."""
    command = Path(sys.executable).parent / "fedgram"
    print("$ fedgram", *arguments, flush=True)
    subprocess.run([command, *arguments], check=True, stdout=subprocess.DEVNULL)


def core() -> None:
    """Show version and help, run on digits."""
    fedgram("--version")
    fedgram("--help")
    fedgram("run", "--data", "digits")


def sklearn() -> None:
    """Fit an estimator."""
    from fedgram.data import digits
    from fedgram.sklearn import GramClassifier

    data = digits()
    assert GramClassifier().fit(data.x, data.y).score(data.x, data.y) > 0.9


def tables() -> None:
    """Run on a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"a": [float(k % 7) for k in range(80)], "b": [float(k % 3) for k in range(80)]}
    site, ill = [f"site-{k % 4}" for k in range(80)], ["yes" if k % 7 > 3 else "no" for k in range(80)]
    parquet.write_table(pa.table(columns | {"site": site, "ill": ill}), "table.parquet")
    fedgram("run", "--data", "table.parquet", "--label", "ill", "--client-column", "site")


def nets() -> None:
    """Train a network for a round."""
    fedgram("run", "--data", "digits", "--method", "fedavg", "--set", "rounds=1", "--set", "network=mlp:8")


def onnx() -> None:
    """Write a linear model as an ONNX file."""
    from fedgram import Moments

    Moments.of([[0.0], [1.0], [2.0]], ["no", "yes", "yes"], classes=["no", "yes"]).model(1.0).to_onnx("model.onnx")
    assert Path("model.onnx").stat().st_size


def plot() -> None:
    """Draw pictures of a comparison."""
    fedgram("compare", "--data", "digits", "--methods", "afl,local", "--clients", "5", "--seeds", "0", "--out", "found")
    fedgram("report", "found", "--out", "page")
    assert list(Path("page").rglob("*.pdf")) or list(Path("page").rglob("*.png"))


def exchange() -> None:
    """Make a pair of keys."""
    fedgram("keys", "new", "north")
    fedgram("keys", "show", "north.key")


def flower() -> None:
    """Simulate a few clients."""
    fedgram("run", "--data", "digits", "--clients", "3", "--engine", "flower-sim", "--workers", "1")


def _features(name: str) -> tuple[int, ...]:
    import numpy as np

    from fedgram.features import backbone

    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    return tuple(backbone(name, cache=Path("cache"))(images).shape)


def vision() -> None:
    """Export the smallest backbone and run it."""
    assert _features("lite0:32") == (2, 1280)


def vision_lite() -> None:
    """Export a larger backbone and run it."""
    assert _features("lite1:32") == (2, 1280)


def hub() -> None:
    """Run a tiny model in the hub's layout."""
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    transformers.ViTModel(config).save_pretrained("tiny")
    assert _features(f"hub:{Path('tiny').absolute()}") == (2, 32)


def text() -> None:
    """Embed two sentences."""
    from fedgram.features import backbone

    assert backbone("minilm", cache=Path("cache"))(["a headache", "a broken leg"]).shape == (2, 384)


def docs() -> None:
    """Build the documentation."""
    subprocess.run([sys.executable, ROOT / "tools" / "build_docs.py"], check=True)


JOBS: dict[str, Callable[[], None]] = {
    job.__name__.replace("_", "-"): job
    for job in (core, sklearn, tables, nets, plot, exchange, flower, vision, vision_lite, hub, text, docs)
}


def tried(name: str) -> bool:
    """Install an extra in a new environment, do its job there, and return whether that succeeded."""
    with tempfile.TemporaryDirectory(prefix=f"fedgram-{name}-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
        given = f"{ROOT}" if name == "core" else f"{ROOT}[{name}]"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        # A constraint, not a requirement: only extras that need torch get it.
        (Path(folder) / "pinned.txt").write_text("\n".join(PINNED))
        subprocess.run([*pip, "install", "-c", Path(folder) / "pinned.txt", "-e", given], check=True)
        done = subprocess.run([python, Path(__file__).absolute(), "--job", name], check=False, cwd=folder)
        return done.returncode == 0


def main(names: list[str]) -> None:
    """Try the named extras, or all."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if extras.keys() - NOT_TRIED != JOBS.keys() - {"core"}:
        sys.exit(f"extras {sorted(extras.keys() - NOT_TRIED)}, but jobs for {sorted(JOBS)}: add or remove one")
    failed = []
    for name in names or JOBS:
        print(f"== {name}", flush=True)
        if not tried(name):
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        JOBS[sys.argv[2]]()
    else:
        main(sys.argv[1:])
