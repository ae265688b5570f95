"""Every hyper-parameter has a line in the `Parameters` section of the class that defines it, and users see it."""

from dataclasses import fields
from inspect import get_annotations

import pytest

import fedgram as fg
from fedgram.protocol.method import Method
from fedgram.protocol.parameters import own_notes, parameter_notes
from support.command import fedgram

CLASSES = {
    cls.__name__: cls
    for name in fg.registry
    for cls in fg.registry[name].__mro__
    if issubclass(cls, Method) and cls is not Method
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_hyper_parameter_of_the_class_is_documented(name):
    cls = CLASSES[name]
    known = {field.name for field in fields(cls)}
    assert list(own_notes(cls)) == [own for own in get_annotations(cls) if own in known]
    assert all(note.endswith(".") for note in own_notes(cls).values())


@pytest.mark.parametrize("name", ["afl", "fedavg", "fedapa"])
def test_the_command_shows_each_with_its_description(name):
    shown = " ".join(fedgram("methods", name).split())
    for field in fields(fg.registry[name]):
        assert f"{field.name} = " in shown
    # A table cuts lines, so the first words of a description are looked for.
    for note in parameter_notes(fg.registry[name]).values():
        assert " ".join(note.split()[:2]) in shown


def test_a_class_describes_what_its_base_describes_differently():
    assert parameter_notes(fg.SCAFFOLD)["momentum"] == "m, of the clients' SGD."
    assert parameter_notes(fg.SCAFFOLD)["lr"] == parameter_notes(fg.FedAvg)["lr"]
