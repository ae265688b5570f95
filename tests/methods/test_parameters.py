"""Every hyper-parameter of a network's method has a line in the `Parameters` section of the class that defines it."""

import re
from dataclasses import fields
from inspect import get_annotations

import pytest

import fedgram as fg
from fedgram.methods.gradient.gradient_method import GradientMethod
from fedgram.methods.layerwise.fedacnnl import FedACnnL
from fedgram.protocol.method import Method

CLASSES = {
    cls.__name__: cls
    for name in fg.registry
    for cls in fg.registry[name].__mro__
    if issubclass(fg.registry[name], GradientMethod | FedACnnL) and issubclass(cls, Method) and cls is not Method
}


def documented(cls):
    """Return the names in the `Parameters` section of a class's own docstring, in order, with their descriptions."""
    section = (cls.__dict__["__doc__"] or "").partition("Parameters\n    ----------\n")[2]
    return dict(re.findall(r"^    (\w+)\n        (\S.*)$", section, re.MULTILINE))


@pytest.mark.parametrize("name", CLASSES)
def test_every_hyper_parameter_of_the_class_is_documented(name):
    cls = CLASSES[name]
    known = {field.name for field in fields(cls)}
    assert list(documented(cls)) == [own for own in get_annotations(cls) if own in known]
    assert all(said.endswith((".", ",", ";")) or len(said) > 80 for said in documented(cls).values())
