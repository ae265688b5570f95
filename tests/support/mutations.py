"""Damage to bytes and to trees of JSON, drawn at random: what fuzzers of all kinds of files share."""

import numpy as np


def flipped(data, rng):
    """Change some bytes."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 9)):
        changed[rng.integers(len(data))] ^= int(rng.integers(1, 256))
    return bytes(changed)


def truncated(data, rng):
    """Leave out the end."""
    return data[: rng.integers(len(data))]


def lengthened(data, rng):
    """Add some bytes."""
    return data + rng.bytes(int(rng.integers(1, 64)))


def spliced(data, rng):
    """Copy a piece over another place, or take one out."""
    start, end = sorted(rng.integers(0, len(data), 2))
    place = int(rng.integers(len(data)))
    return data[:place] + data[start:end] + data[place:] if rng.random() < 0.5 else data[:start] + data[end:]


OF_BYTES = (flipped, truncated, lengthened, spliced)


def damaged(data, rng):
    """Return bytes with one kind of damage."""
    return OF_BYTES[rng.integers(len(OF_BYTES))](data, rng)


def places_in(tree, path=()):
    """Yield the places of all values in a tree, that of the tree itself first."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places_in(value, (*path, key))


ODD_VALUES = (None, 0, -1, 2**70, 1e308, 0.5, True, "", "x", "study", "\x1b[2J<script>", [], {}, [1, 2], [[1.0]])


def changed_within(tree, rng, values=ODD_VALUES):
    """Change one value anywhere in a tree: remove, duplicate or replace it, or copy another place's value."""
    places = [place for place in places_in(tree) if place]
    *above, last = places[rng.integers(len(places))]
    holder = _at(tree, above)
    choice = rng.integers(4)
    if choice == 0 and isinstance(holder, dict):
        holder.pop(last)
    elif choice == 1 and isinstance(holder, list):
        holder.append(holder[last])
    elif choice == 2:
        other = _at(tree, places[rng.integers(len(places))])
        if not any(other is _at(tree, above[:depth]) for depth in range(len(above) + 1)):  # no tree within itself
            holder[last] = other
    else:
        holder[last] = values[rng.integers(len(values))]


def _at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


ODD_NUMBERS = (0.0, -1.0, 1e300, 0.5, 1e-300, np.nan, np.inf, -0.0)


def with_odd_number(body, rng, dtype="<f8"):
    """Return the bytes of arrays with an odd number somewhere."""
    changed, size = bytearray(body), np.dtype(dtype).itemsize
    place = int(rng.integers(len(body) // size)) * size
    with np.errstate(all="ignore"):
        changed[place : place + size] = np.array(rng.choice(ODD_NUMBERS)).astype(dtype).tobytes()
    return bytes(changed)
