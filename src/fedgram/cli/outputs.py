"""Where commands may write."""

from pathlib import Path

from fedgram.core.errors import InvalidParameter


def check_output(option: str, target: Path, *inputs: Path | None) -> None:
    """Refuse to write over one of the files that a command reads, by whatever name."""
    for given in inputs:
        if given is not None and target.exists() and given.exists() and target.samefile(given):
            raise InvalidParameter(
                f"{option} {target} is {given} itself, which would be overwritten: give another name"
            )
