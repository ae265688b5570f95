"""Methods with hyper-parameters, as experiments give them; lists of values become one variant each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args, get_origin

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.schema import Name, read_fields, shown
from fedgram.protocol.method import Method
from fedgram.protocol.named_methods import is_code, resolve
from fedgram.protocol.parameters import configured, parameter_types, read_settings

CENTRALISED = "centralised"
MOST_FREQUENT = "own most frequent class"
REFERENCES = (CENTRALISED, MOST_FREQUENT)  # lines of a table that are not methods
EXAMPLE = 'methods = ["afl", {name = "local", ridge = [0.1, 1]}]'


@dataclass(frozen=True)
class Variant:
    """One method with one set of hyper-parameters, and the label that it has in tables."""

    label: str
    method: Method


def read_variants(entries: Iterable[Any]) -> tuple[Variant, ...]:
    """Return the variants of a list of names, or of tables with `name`, maybe `label`, and hyper-parameters.

    >>> [v.label for v in read_variants(["afl", {"name": "afl", "label": "no RI", "ri": False, "gamma": [1, 10]}])]
    ['afl', 'no RI (gamma=1)', 'no RI (gamma=10)']
    """
    variants = [variant for table in _tables(entries) for variant in _expand(table)]
    for variant in variants:
        if variant.label in REFERENCES:
            raise InvalidParameter(f"{variant.label!r} is the label of a reference: give the method another label")
        twins = [other for other in variants if other.method == variant.method]
        if len(twins) > 1:
            raise InvalidParameter(f"methods has the same run twice: {twins[0].label!r} and {twins[1].label!r}")
        if sum(other.label == variant.label for other in variants) > 1:
            raise InvalidParameter(f"two methods have the label {variant.label!r}: give each its own")
    return tuple(variants)


def from_options(names: Iterable[str], settings: Iterable[str], lines: Any = ()) -> list[dict[str, Any]]:
    """Return the entries of `--methods a,b` and `--set a.parameter=value`; values with commas are grids.

    In `--set` a method of a file or a module goes by its own name, too. `lines` are the `methods` of an experiment
    file: a method gets all of its lines there, or its defaults if it has none.

    >>> from_options(["afl", "local"], ["local.ridge=0.1,1"], [{"name": "afl", "gamma": 2}, "fedavg"])
    [{'name': 'afl', 'gamma': 2}, {'name': 'local', 'ridge': [0.1, 1.0]}]
    """
    tables = _tables(lines)
    entries: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        if name in entries:
            raise InvalidParameter(f"--methods has {name!r} twice: give each once")
        entries[name] = [dict(table) for table in tables if _same(table["name"], name)] or [{"name": name}]
    for text in settings:
        path, equals, value = text.partition("=")
        prefix, dot, parameter = path.rpartition(".")  # a file's name has dots of its own
        named = [name for name in entries if prefix in _prefixes(name)]
        if not (equals and dot and named):
            known = [prefix for name in entries for prefix in _prefixes(name)]
            raise InvalidParameter(
                f"--set: expected METHOD.PARAMETER=VALUE, got {text!r}; METHOD may be {' or '.join(known)}"
            )
        name = named[0]
        cls = resolve(name)
        values = [read_settings(cls, {parameter: piece})[parameter] for piece in value.split(",")]
        for entry in entries[name]:
            entry[parameter] = values if len(values) > 1 else values[0]
            if "label" in entry and len(values) == 1:  # the file's label does not say what the option changed
                entry["label"] += f" ({parameter}={show(values[0])})"
    return [entry for chosen in entries.values() for entry in chosen]


def _prefixes(name: str) -> tuple[str, ...]:
    """Return the names of a method in `--set`: the method's own name, and its file or class as `--methods` has it."""
    return (resolve(name).name, name) if is_code(name) else (name,)


def _tables(entries: Any) -> list[Mapping[str, Any]]:
    """Return the entries of `methods` as tables that have a name, and a label that is text if they have one."""
    listed = entries if isinstance(entries, str | Mapping) or not isinstance(entries, Iterable) else list(entries)
    if not isinstance(listed, list):
        raise InvalidParameter(f"methods: expected a list such as {EXAMPLE}, got {shown(entries)}")
    tables: list[Mapping[str, Any]] = []
    for place, entry in enumerate(listed):
        table = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            raise InvalidParameter(
                f'methods[{place}]: expected a name, or a table with a name as in {{name = "afl"}}, got {shown(entry)}'
            )
        read_fields({"label": Name}, table, f"{table['name']}: ", error=InvalidParameter)
        tables.append(table)
    return tables


def _same(one: str, other: str) -> bool:
    """Return whether two names are of the same method; a file or a class can be named in more than one way."""
    return one == other or ((is_code(one) or is_code(other)) and resolve(one) is resolve(other))


def _expand(table: Mapping[str, Any]) -> list[Variant]:
    cls = resolve(table["name"])
    label = table.get("label")
    values = {name: value for name, value in table.items() if name not in ("name", "label")}
    kinds = parameter_types(cls)
    for name in values:
        if name not in kinds:
            raise UnknownName(f"parameter of {cls.__name__}", name, [*kinds, "label"])
    grid = {name: _choices(cls.name, name, value, kinds[name]) for name, value in values.items()}
    # A label from the user already describes the fixed values.
    told = [name for name, choices in grid.items() if len(choices) > 1 or label is None]
    variants = []
    for combination in product(*grid.values()):
        settings = dict(zip(grid, combination, strict=True))
        details = ", ".join(f"{name}={show(settings[name])}" for name in told)
        variants.append(Variant((label or cls.name) + (f" ({details})" if details else ""), configured(cls, settings)))
    return variants


def _choices(method: str, name: str, value: Any, annotation: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if not value:
        raise InvalidParameter(f"{name} of method {method!r} has no values: give at least one")
    if not _takes_many(annotation):
        return value
    # A hyper-parameter that is itself a list, such as the widths of layers: only a list of lists is a grid.
    return [tuple(item) for item in value] if isinstance(value[0], list) else [tuple(value)]


def _takes_many(annotation: Any) -> bool:
    return any(get_origin(kind) is tuple for kind in (annotation, *get_args(annotation)))


def show(value: Any) -> str:
    """Return a hyper-parameter's value as text for labels."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    # More digits than %g has: close values must not look the same in labels.
    return f"{value:.12g}" if isinstance(value, float) else str(value)
