"""Clients that lie: an engine that spoils one client's replies, and lies about each part of a reply."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np

import fedgram as fg
from fedgram import checks
from fedgram.core import wire
from fedgram.engines.inprocess import InProcess, Room
from fedgram.protocol import session


@dataclass(frozen=True)
class Spoiled:
    """An engine whose client `bad` replies to `step` with a given value; no client is trusted."""

    step: str
    reply: object
    bad: str = "client-0"

    def run(self, method, clients, *, classes=None, seed=0, require="all", progress=None, study=None):
        with SpoiledRoom(method, clients, InProcess(), study) as room:
            room.spoiled = self
            options = {"classes": classes, "seed": seed, "require": require, "progress": progress, "study": study}
            fit = session.run(method, room, **options)
            return replace(fit, personal=room.personal_models())


class SpoiledRoom(Room):
    trusted = False

    def exchange(self, step, requests):
        for name, answer in super().exchange(step, requests):
            if isinstance(answer, bytes):
                value = wire.decode(answer)
                if name == self.spoiled.bad and step == self.spoiled.step:
                    lie = self.spoiled.reply
                    value = lie(value) if callable(lie) else lie
                yield name, wire.encode(value)
            else:
                yield name, answer


def clients(method=None):
    return checks.some_clients(count=4, samples=200, method=method)


def quick(name):
    """Return the quickest form of a method."""
    method = checks.example(name)
    changes = {"rounds": 2, "epochs": 1} if hasattr(method, "epochs") else {"rounds": 2} if name == "fedlogit" else {}
    if "participation" in changes | method.settings():
        changes |= {"participation": 1.0}
    if name == "apfl":
        changes = {"dim_primary": 32, "dim_refine": 32}
    return type(method)(**method.settings() | changes)


def honest(method):
    """Return an honest run, and the first client's first reply to each step."""
    seen = {}

    class Listening(SpoiledRoom):
        def exchange(self, step, requests):
            for name, answer in super().exchange(step, requests):
                if name == "client-0" and isinstance(answer, bytes):
                    seen.setdefault(step, wire.decode(answer))
                yield name, answer

    options = {"classes": None, "study": None} | checks.options_of(method)
    with Listening(method, clients(method), InProcess(), options["study"]) as room:
        room.spoiled = Spoiled("", None)
        fit = session.run(method, room, seed=0, require="all", progress=None, **options)
        return replace(fit, personal=room.personal_models()), seen


def lies(value, path=()):
    """Yield lies about each part of a reply: its path, and what to put there."""
    if isinstance(value, np.ndarray):
        yield from ((path, lie) for lie in _arrays(value))
    elif isinstance(value, Mapping | list):
        yield from ((path, lie) for lie in (None, 5, "", type(value)()))
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from lies(part, (*path, key))
    elif isinstance(value, fg.Moments):
        yield from ((path, lie) for lie in (None, 5, {}))
        for name, array in _arrays_of(value).items():
            yield from lies(array, (*path, name))
        yield from ((path, Times(factor)) for factor in (-1.0, 1e30, 1e200))
    elif is_dataclass(value):
        for part in fields(value):
            yield from lies(getattr(value, part.name), (*path, part.name))
    elif value is not None:
        numbers = (1e30, 1e200, -1, 2**40, 2**62, float("nan"), float("inf"))
        yield from (
            (path, lie)
            for lie in (*numbers, None, "a", [], {}, np.ones(3))
            if type(lie) is not type(value) or lie != value
        )


def told(value, path, lie):
    """Return a reply with a lie in one place."""
    if not path:
        return lie.of(value) if isinstance(lie, Times) else lie
    first, *rest = path
    if isinstance(value, fg.Moments):
        arrays = _arrays_of(value)
        spoiled = told(arrays[first], rest, lie)
        return spoiled if not isinstance(spoiled, np.ndarray) else _moments(value, **arrays | {first: spoiled})
    if is_dataclass(value):
        return replace(value, **{first: told(getattr(value, first), rest, lie)})
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    if (isinstance(copy, list) and first >= len(copy)) or (isinstance(copy, dict) and first not in copy):
        return value  # the first round's replies have parts that later ones lack
    copy[first] = told(copy[first], rest, lie)
    return copy


@dataclass(frozen=True)
class Times:
    """Moments times a factor: possible ones of other samples, unless it is negative or too large."""

    factor: float

    def of(self, moments):
        arrays = _arrays_of(moments)
        root = abs(self.factor) ** 0.5
        arrays["sums"] = arrays["sums"] * root
        for name, factor in {"packed": self.factor, "factor": root}.items():
            if name in arrays:
                arrays[name] = arrays[name] * factor
        return _moments(moments, **arrays)


def _arrays_of(moments):
    arrays = moments.to_fields()
    named = {"packed": arrays["gram"], "factor": arrays["factor"], "sums": arrays["sums"], "counts": arrays["counts"]}
    return {name: array for name, array in named.items() if array is not None}


def _moments(like, **arrays):
    return fg.Moments(like.schema, **arrays)


def _arrays(array):
    """Return absurd arrays in place of one."""
    yield from (None, 5, "a", [], {}, array.ravel()[:0], np.append(array.ravel(), array.ravel()[:1]))
    yield array.astype(np.int8 if array.dtype.kind == "f" else np.float64)
    if array.dtype.kind == "f":
        largest = (1e200,) if array.itemsize == 8 else ()
        for number in (-1.0, 1e10, 1e30, np.nan, np.inf, *largest):
            yield np.full_like(array, number)
        for number in (1e30, -1e12, *largest):
            spike = array.copy()
            spike.ravel()[-1:] = number
            yield spike
    elif array.dtype.kind == "i":
        yield from (np.full_like(array, number) for number in (-1, min(2**40, np.iinfo(array.dtype).max)))
