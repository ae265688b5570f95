"""Foreign names and cells, on a terminal and in a spreadsheet: no control characters, no formulas."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.escaping import unguarded

HOSTILE = "h\x1b]0;pwned\x07\x1b[31m\x1b[2J\u202e\u2066\x9b1m\x7f"
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Runs commands one after the other in this process, each of them as `fedgram` does.
RUN = """\
import json, sys
from fedgram.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["fedgram", *arguments]
    try:
        main()
    except SystemExit as end:
        print("exit", end.code, file=sys.stderr, flush=True)
"""


def run(folder, commands, *, watched):
    """Return what commands print to stdout and stderr, into pipes or to a terminal, where these are one."""
    arguments = [sys.executable, "-c", RUN, json.dumps(commands)]
    environment = os.environ | {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"}
    if not watched:
        done = subprocess.run(arguments, cwd=folder, capture_output=True, check=True, env=environment)
        return done.stdout.decode() + done.stderr.decode()
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    with subprocess.Popen(arguments, cwd=folder, stdout=theirs, stderr=theirs, stdin=theirs, env=environment):
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 1 << 16):
                said += part
        except OSError:  # Linux's word for the end
            pass
    os.close(ours)
    return said.decode()


def table(path, rng, rows=60):
    """Write a table whose columns, clients, classes and one cell are hostile."""
    with path.open("w", newline="", encoding="utf-8") as file:
        write = csv.writer(file, quoting=csv.QUOTE_ALL)
        write.writerow([f"a{HOSTILE}", f"kind{HOSTILE}", "who", "label", f"id{HOSTILE}"])
        for k in range(rows):
            label = f"{HOSTILE}{k % 2}"
            number = HOSTILE if k == 3 and path.stem == "bad" else f"{rng.normal() + k % 2:.3f}"
            write.writerow([number, f"u{HOSTILE}" if k % 3 else "v", f"{HOSTILE}{k % 4}", label, f"i{k}"])


@pytest.mark.parametrize("watched", [False, True], ids=["into pipes", "on a terminal"])
def test_no_command_prints_control_characters_of_others(tmp_path, watched):
    rng = np.random.default_rng(0)
    for name in ("own", "bad"):
        table(tmp_path / f"{name}.csv", rng)
    (tmp_path / "numbers.csv").write_text(
        f'"a{HOSTILE}","b{HOSTILE}",label,client\n'
        + "".join(f"{rng.normal()},{rng.normal()},c{HOSTILE}{k % 2},{HOSTILE}{k % 3}\n" for k in range(60)),
        encoding="utf-8",
    )
    model = fg.LinearModel(np.eye(2), (f"x{HOSTILE}", "y"), columns=(f"a{HOSTILE}", f"b{HOSTILE}"))
    (tmp_path / "model").write_bytes(fg.core.wire.encode(model))
    roles = ["--label", "label", "--client-column", "who"]
    commands = [
        ["run", "--method", "afl", "--data", "own.csv", *roles],
        ["run", "--method", "fedgram", "--data", "own.csv", *roles],
        ["run", "--method", "afl", "--data", "numbers.csv"],
        ["run", "--method", "afl", "--data", "bad.csv", *roles],
        ["run", "--method", "afl", "--data", "own.csv", *roles, "--drop", f"nothing{HOSTILE}"],
        ["compare", "--methods", "afl,local", "--data", "own.csv", *roles, "--seeds", "1", "--out", "out"],
        ["report", "out/results.jsonl"],
        ["predict", "model", "numbers.csv", "--label", "label"],
        ["predict", "model", "own.csv", "--label", "label"],
        ["predict", "model", "numbers.csv", "--label", "label", "--out", "p.csv", "--id", "client"],
        ["study", "new", "own.csv", "--outcome", "label", "--out", "study.toml"],
        ["study", "show", "study.toml"],
        ["study", "check", "study.toml", "own.csv"],
        ["study", "check", "study.toml", "bad.csv"],
        ["summarize", "study.toml", "own.csv", "--party", f"north{HOSTILE}", "--out", "north.fgm"],
        ["summarize", "study.toml", "own.csv", "--party", "north", "--out", "north.fgm"],
        ["summarize", "study.toml", "bad.csv", "--party", "north", "--out", "bad.fgm"],
        ["inspect", "north.fgm"],
        ["join", "store", "north.fgm"],
        ["status", "store"],
        *(["describe", "store", *form] for form in ([], ["--correlations"], ["--csv"], ["--latex"])),
        ["log", "store"],
        ["publish", "store", "--out", "global.fgm"],
        ["verify", "store", "north.fgm"],
        ["evaluate", "global.fgm", "own.csv"],
        ["predict", "global.fgm", "own.csv", "--out", "q.csv"],
        ["remove", "store", "north"],
    ]
    said = run(tmp_path, commands, watched=watched)
    assert said.count("exit") >= len(commands)
    assert r"\x1b]0;pwned" in said, "the names are shown, written out"
    if not watched:  # predictions into a pipe are data, as they are
        said = said.replace(f"x{HOSTILE}", "")
    found = [said[max(0, hit.start() - 80) : hit.end()] for hit in CONTROLS.finditer(said)]
    assert not found, found[:3]


def test_predictions_hold_no_formulas(tmp_path):
    """Identifiers and classes that a spreadsheet would compute get an apostrophe, which can be taken away again."""
    ids = ["=cmd|'/c calc'!A0", "@SUM(A1)", "\t=1", "+1+1", "-2-3", "-7", "+7.5e3", "'=1", "plain", "-", "'n"]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["=key", "a", "b"], *([key, k, -k] for k, key in enumerate(ids))])
    model = fg.LinearModel(np.eye(2), ("=1+1", "@x"), columns=("a", "b"))
    (tmp_path / "model").write_bytes(fg.core.wire.encode(model))
    run(tmp_path, [["predict", "model", "new.csv", "--id", "=key", "--out", "p.csv"]], watched=False)
    run(tmp_path, [["predict", "model", "new.csv", "--out", "labels.csv"]], watched=False)
    header, *rows = csv.reader(io.StringIO((tmp_path / "p.csv").read_text(), newline=""))
    assert header[:2] == ["'=key", "label"]
    assert [row[0] for row in rows][5:7] == ["-7", "+7.5e3"]
    for row in rows:
        assert not re.match(r"\s*[=+@]|[\t\r]|-.*[^0-9.e]", row[0]) or row[0] in ("-", "+7.5e3")
    assert [unguarded(row[0]) for row in rows] == [key.strip() for key in ids], "identifiers can still be joined"
    assert {row[1] for row in rows} <= {"'=1+1", "'@x"}
    assert set((tmp_path / "labels.csv").read_text().split()) <= {"'=1+1", "'@x"}
