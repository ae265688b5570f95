"""Helpers for tests of reports: minimal records, and the command."""

from typer.testing import CliRunner

from fedgram.cli import app


def record(label, accuracy, *, clients=10, partition="dirichlet:0.1", seed=0, **more):
    """Return a run's minimal record."""
    return {
        "kind": "run",
        "key": f"{label}/{clients}/{partition}/{seed}/{sorted(more.get('settings', {}).items())}",
        "label": label,
        "method": label,
        "data": "digits",
        "clients": clients,
        "partition": partition,
        "seed": seed,
        "status": "ok",
        "accuracy": {"client_mean": accuracy, "pooled": accuracy - 0.01, "worst_decile": accuracy - 0.1},
    } | more


SMALL = [
    record("afl", 0.9),
    record("centralised", 0.95, reference=True),
    record("lo_cal & 50%", 0.8),
    record("afl", 0.91, seed=1),
    record("centralised", 0.95, reference=True, seed=1),
    record("lo_cal & 50%", 0.85, seed=1),
    record("third", 0.7),
    record("third", 0.7, seed=1, status="failed", error="boom"),
    record("afl", 0.6, clients=50),
    record("lo_cal & 50%", 0.6, clients=50),
    record("third", 0.55, clients=50),
    record("afl", 0.5, partition="iid"),
    record("third", 0.0, partition="iid", status="failed", error="boom"),
]


def report(*options):
    result = CliRunner().invoke(app, ["report", *map(str, options)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
