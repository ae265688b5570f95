"""Methods and engines by name, also those from outside."""

from dataclasses import dataclass

import pytest

import fedgram as fg
from fedgram.core.errors import UnknownName
from support.probe import fit


def test_unknown_engine_is_named():
    with pytest.raises(UnknownName, match="did you mean 'inprocess'"):
        fit(fg.AFL(), engine="inproces")


def test_registering_from_outside():
    @fg.register
    @dataclass(frozen=True, kw_only=True)
    class Outside(fg.AFL):
        """A user's method."""

    try:
        assert fg.registry["outside"] is Outside
        assert "outside" in list(fg.registry)
        with pytest.raises(ValueError, match="'afl' is taken"):
            fg.register(dataclass(frozen=True, kw_only=True)(type("AFL", (fg.AFL,), {})))
        with pytest.raises(TypeError, match="with @dataclass"):
            fg.register(type("Plain", (fg.AFL,), {}))
    finally:
        del fg.registry._methods["outside"]
    with pytest.raises(UnknownName, match="unknown method 'outsid'"):
        fg.registry["outsid"]


def test_what_the_registry_gives_is_in_it():
    for name in ("afl", "AFL", "FedGram"):
        assert fg.registry[name].name == name.lower()
        assert name in fg.registry
    for strange in ("", "afll", 5, None, ("afl",), fg.AFL):
        assert strange not in fg.registry
        with pytest.raises(UnknownName, match="unknown method"):
            fg.registry[strange]
