"""Commands never overwrite an earlier result silently, and go on when a reader closes the pipe."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fedgram.cli import app
from fedgram.core.errors import InvalidData, UnknownName
from fedgram.exchange.format import fgm
from fedgram.exchange.store.study_store import Store
from support.command import PROGRAM, run
from support.exchange import PARTIES, TEXT, key_of, table, tables
from support.stores import store_of, summary

ROOT = Path(__file__).parents[2]
SUMMARIZE = ("summarize", "study.toml", "north.csv", "--key", "north.key")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a party's table and a store of two, and change into it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(TEXT)
    tables(tmp_path)
    key_of(0).save(tmp_path / "north.key")
    store_of(tmp_path / "store", "north", "south").index.close()
    return tmp_path


def ended(*options):
    done = run(*options)
    assert "Traceback" not in done.stderr
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def change(folder, what):
    """Make the next result differ."""
    if what == "summarize":
        (folder / "north.csv").write_text(table(7))
    else:
        Store(folder / "store").join(summary("east"))


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (SUMMARIZE, "north.fgm"),
        (("publish", "store", "--no-sites"), "global.fgm"),
        (("publish", "store", "--method", "fedlogit"), "round-1.fgm"),
        (("combine", "store"), "region.fgm"),
    ],
    ids=lambda found: found if isinstance(found, str) else found[0],
)
def test_an_earlier_output_stays_unless_it_is_the_same(folder, command, target):
    path = folder / target
    path.write_text("mine")
    code, said = ended(*command)
    assert code == 2
    assert f"{target} exists and holds something else: give another name with --out, or --force" in said
    assert path.read_text() == "mine"
    assert ended(*command, "--force")[0] == 0
    first = fgm.read(path).digest
    assert ended(*command)[0] == 0  # the same again
    change(folder, command[0])
    assert ended(*command)[0] == 2
    assert fgm.read(path).digest == first
    assert ended(*command, "--force")[0] == 0
    assert fgm.read(path).digest != first


PERSONALIZE = ("personalize", "global.fgm", "north.csv", "--key", "north.key", "--party", "north")
WRITERS = {  # the command without its target, and the target
    "remove": (("remove", "store", "south"), ("--out", "south.fgm")),
    "remove without --out": (("remove", "store", "south"), ("", "south-removed.fgm")),
    "personalize": (PERSONALIZE, ("--out", "mine.fgm")),
    "inspect": (("inspect", "north.fgm"), ("--html", "north.html")),
    "status": (("status", "store"), ("--html", "status.html")),
    "describe": (("describe", "store"), ("--html", "table-1.html")),
    "describe to --out": (("describe", "store", "--csv"), ("--out", "table-1.csv")),
    "coefficients": (("coefficients", "costs"), ("--html", "table.html")),
    "coefficients to --out": (("coefficients", "costs", "--csv"), ("--out", "table.csv")),
    "evaluate": (("evaluate", "global.fgm", "north.csv"), ("--plot", "calibration.svg")),
    "predict": (("predict", "fit", "north.csv"), ("--out", "labels.txt")),
    "run": (("run", "--clients", "3"), ("--save", "kept")),
    "study new": (("study", "new", "north.csv", "--outcome", "diagnosis"), ("--out", "drafted.toml")),
    "report": (("report", "results"), ("--out", "page")),
}


@pytest.fixture
def results(folder):
    """Write the input files of the commands."""
    (folder / "north.fgm").write_bytes(summary("north"))
    study, fields = ("--data", "north.csv", "--label", "diagnosis"), ("--clients", "2", "--partition", "iid")
    assert ended("run", *study, *fields, "--save", "fit", "--out", "results")[0] == 0
    for options in (SUMMARIZE[:-2], ("join", "walks", "north.fgm"), ("publish", "walks", "--no-sites")):
        more = ("--party", "north", "--force") if options[0] == "summarize" else ()
        assert ended(*options, *more)[0] == 0
    draft = ("study", "new", "north.csv", "--outcome", "age", "--name", "costs", "--out", "costs.toml")
    numeric = ("summarize", "costs.toml", "north.csv", "--party", "north", "--out", "costs.fgm")
    for options in (draft, numeric, ("join", "costs", "costs.fgm")):
        code, said = ended(*options)
        assert code == 0, said
    return folder


@pytest.mark.parametrize("name", WRITERS)
def test_no_command_writes_over_an_earlier_file(results, name):
    command, (option, target) = WRITERS[name]
    if name == "evaluate":
        pytest.importorskip("matplotlib")
    path = results / target
    path.mkdir() if name == "report" else None
    mine = path / "table.md" if name == "report" else path
    mine.write_text("mine")
    given = (*command, option, target) if option else command
    code, said = ended(*given)
    assert code == 2, said
    assert "--force to write over it" in said
    assert mine.read_text() == "mine"
    if name.startswith("remove"):
        assert len(Store("store").contributions()) == 2
    code, said = ended(*given, "--force")
    assert code == 0, said
    assert mine.read_bytes() != b"mine"


ONCE = {  # commands that never write over anything, and the earlier file
    "keys new": (("keys", "new", "west"), "west.key"),
    "keys new beside the public key": (("keys", "new", "west"), "west.pub"),
    "keys rotate": (("keys", "rotate", "north.key"), "new-keys/north.rotation"),
    "keys rotate beside the key": (("keys", "rotate", "north.key"), "new-keys/north.key"),
    "compare": (("compare", "--data", "digits", "--methods", "afl", "--out", "compared"), "compared/results.jsonl"),
    "run": (("run", "--data", "digits", "--clients", "2", "--out", "ran"), "ran/results.jsonl"),
    "flower new": (("flower", "new", "app"), "app/pyproject.toml"),
    "flower certificates": (("flower", "certificates", "certificates"), "certificates/ca.crt"),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_has_no_force_is_written_once(folder, name):
    command, target = ONCE[name]
    mine = folder / target
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    code, said = ended(*command)
    assert code == 2, said
    assert mine.read_text() == "mine"


TESTED = {"summarize", "publish", "combine", *WRITERS, *ONCE}


def commands(command, name=""):
    """Yield the commands of the command line, each with its name."""
    if hasattr(command, "list_commands"):
        for part in command.list_commands(None):
            yield from commands(command.get_command(None, part), f"{name} {part}".strip())
    else:
        yield name, command


def test_every_command_that_writes_is_tested_here():
    """Options with these names are files or folders to write."""
    found = set()
    for name, command in commands(typer.main.get_command(app)):
        options = {option for parameter in command.params for option in parameter.opts}
        if options & {"--out", "--html", "--save", "--force"}:
            found.add(name)
    assert found - TESTED == set()
    assert found >= {"personalize", "predict", "inspect", "status", "report", "publish", "run", "study new", "keys new"}


def test_status_names_who_was_removed_and_when(folder):
    store = Store("store")
    time = store.remove("south").says["time"]
    assert f"removed: south ({time})" in ended("status", "store")[1]
    assert ended("status", "store", "--html", "page.html")[0] == 0
    assert f"Removed: south ({time})." in (folder / "page.html").read_text()


def test_who_was_removed_already_or_never_joined_is_told(folder):
    store = Store("store")
    time = store.remove("south").says["time"]
    code, said = ended("remove", "store", "south", "--out", "again.fgm")
    assert code == 0
    assert f"south was removed already, at {time}: this is its certificate again" in said
    with pytest.raises(InvalidData, match=f"'south' was removed already, at {time}"):
        store.remove("south")
    with pytest.raises(UnknownName, match="did you mean 'north'"):
        store.remove("nort")
    code, said = ended("remove", "store", "nort")
    assert code == 2
    assert "did you mean 'north'? known: north" in said
    assert not (folder / "nort-removed.fgm").exists()


def test_a_file_of_another_kind_is_wrong_usage(folder):
    (folder / "north.fgm").write_bytes(summary("north"))
    code, said = ended("verify", "store", "north.fgm")
    assert code == 2
    assert (
        "north.fgm is a summary file, not a receipt or a certificate or a publication: give what the coordinator wrote"
        in said
    )
    code, said = ended("log", "store", "--expect", "north.fgm")
    assert code == 2
    assert "is a summary file, not a receipt or a certificate or a publication: give one of these" in said


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", r"a\b"])
def test_a_path_is_no_name_for_keys(folder, name):
    before = sorted(os.listdir(folder)), sorted(os.listdir(folder.parent))
    code, said = ended("keys", "new", name)
    assert code == 2
    assert "is a path, and a party's name is wanted" in said
    assert (sorted(os.listdir(folder)), sorted(os.listdir(folder.parent))) == before


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("command", [SUMMARIZE, ("status", "store"), ("log", "store"), ("log", "store", "--json")])
def test_a_reader_that_goes_away_is_no_error(folder, command):
    end, start = os.pipe()
    os.close(end)  # as `head` does when it has enough
    try:
        done = subprocess.run(
            [*PROGRAM, *command], stdout=start, stderr=subprocess.PIPE, text=True, cwd=folder, check=False
        )
    finally:
        os.close(start)
    assert (done.returncode, done.stderr) == (0, "")
    if command == SUMMARIZE:
        assert fgm.read(folder / "north.fgm").header.party == PARTIES[0]


def test_what_is_wrong_keeps_its_exit_code_without_a_reader(folder):
    end, start = os.pipe()
    os.close(end)
    try:
        command = [*PROGRAM, "log", "store", "--expect", "0" * 64]
        done = subprocess.run(command, stdout=start, stderr=start, cwd=folder, check=False)
    finally:
        os.close(start)
    assert done.returncode == 1


def test_the_commands_of_make_demo_can_be_repeated(tmp_path):
    """On digits in place of the demo's photographs."""
    recipe = re.search(r"^demo: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    commands = [line.split()[1:] for line in recipe.splitlines()]
    assert [command[0] for command in commands] == ["compare", "report"]
    small = ("--data", "digits", "--methods", "afl", "--clients", "3", "--partition", "iid")
    commands[0] = [part for word in commands[0] for part in (small if word.endswith(".toml") else (word,))]
    for _ in range(2):
        for command in commands:
            assert (done := run(*command, cwd=tmp_path)).returncode == 0, done.stderr
    assert {"results.jsonl", "report.html", "table.md"} <= {path.name for path in (tmp_path / "report").iterdir()}
