"""`fedgram run --secure`: a run on secure sums, and what it refuses in one line."""

import json

import pytest

from support.command import run

FIVE = ("--clients", "5", "--partition", "iid")


def test_a_secure_run_says_so_and_has_no_worst_decile():
    done = run("run", "--method", "fedgram", *FIVE, "--secure", "2")
    assert done.returncode == 0, done.stderr
    assert "the server saw sums alone; simulated witnesses: 2" in done.stdout
    assert "client mean" in done.stdout
    assert "worst decile" not in done.stdout


def test_json_has_the_pooled_accuracy_of_the_plain_run():
    plain, secure = (
        json.loads(run("run", "--method", "fedlogit", "--set", "rounds=2", *FIVE, *more, "--json").stdout)
        for more in ((), ("--secure", "2"))
    )
    assert secure["accuracy"].keys() == {"client_mean", "pooled"}
    assert secure["accuracy"]["pooled"] == plain["accuracy"]["pooled"]
    assert secure["secure"] == {"witnesses": 2, "needed": 2, "minimum_parties": 3}
    assert "secure" not in plain
    assert secure["tested"] == [sum(plain["tested"])]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--secure", "0"), "count: expected a whole number"),
        (("--secure", "6"), "witnesses: expected 1 to 5, got 6"),
        (("--secure", "2", "--method", "fedapa"), "got fedapa, which needs each client's reply to 'train'"),
        (("--secure", "2", "--clients", "2"), "parties: expected at least 3, got 2"),
        (("--secure", "2", "--out", "results"), "--out: expected none with --secure"),
        (("--secure", "2", "--describe"), "--describe: expected none with --secure"),
        (("--secure", "2", "--coefficients", "--site-effects", "fixed"), "--site-effects: expected none with --secure"),
        (("--secure", "2", "--engine", "flower-sim"), "secure: expected the engine 'inprocess'"),
        (("--secure", "2", "--method", "fedavg", "--set", "participation=0.5"), "participation: expected 1"),
    ],
)
def test_what_cannot_be_secure_is_refused_in_one_line(arguments, why, tmp_path):
    done = run("run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
