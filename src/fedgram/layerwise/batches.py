"""The largest batches of clients as one line of text, for the API, the command line and TOML files alike."""

from collections.abc import Collection, Mapping

from fedgram.core.errors import InvalidParameter, UnknownName

_EXAMPLE = '4096, or "4096; ward 3=512" where ward 3 has less memory'


def read_limits(limits: int | str) -> tuple[int, Mapping[str, int]]:
    """Return the largest batch of all clients, and those of clients that have one of their own.

    >>> read_limits("4096; ward 3=512; ward 5=1024")
    (4096, {'ward 3': 512, 'ward 5': 1024})
    """
    usual, *others = str(limits).split(";")
    own: dict[str, int] = {}
    for entry in others:
        name, equals, number = entry.rpartition("=")
        if not equals or not name.strip() or name.strip() in own:
            raise InvalidParameter(
                f"batch_max takes a number and then NAME=NUMBER for each client that differs, as in {_EXAMPLE}; "
                f"got {entry.strip()!r}"
            )
        own[name.strip()] = _at_least_one(number)
    return _at_least_one(usual), own


def check_clients(own: Mapping[str, int], names: Collection[str]) -> None:
    """Refuse limits of clients that there are not: they would be meant for somebody else."""
    for name in own:
        if name not in names:
            raise UnknownName("client in batch_max", name, names)


def _at_least_one(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidParameter(f"batch_max takes whole numbers ≥ 1, as in {_EXAMPLE}; got {text.strip()!r}")
    return int(text)
