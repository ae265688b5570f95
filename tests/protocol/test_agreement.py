"""The agreement of clients before a method begins: classes, names, and impossible sets of clients."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import InvalidData, Mismatch
from support.probe import clients, fit


def test_classes_are_the_union_of_names_where_none_are_given():
    a = fg.Client("a", np.eye(4)[:2], ["cat", "dog"])
    b = fg.Client("b", np.eye(4)[2:], ["dog", "fox"])
    result = fg.AFL(intercept=False).fit([a, b])
    assert result.model.classes == ("cat", "dog", "fox")
    assert result.model.predict(np.eye(4)).tolist() == ["cat", "dog", "dog", "fox"]


def test_names_and_numbers_do_not_mix():
    parties = [fg.Client("a", np.eye(3), [0, 1, 1]), fg.Client("b", np.eye(3), ["x", "y", "y"])]
    with pytest.raises(Mismatch, match="'a' has .*numbers as labels; client 'b' has .*names as labels"):
        fg.AFL().fit(parties)


@pytest.mark.parametrize(
    ("parties", "words"),
    [
        ([], "no clients"),
        ([fg.Client("a", np.zeros((0, 3)), [])], "none of the 1 clients has any samples"),
        (clients(1) + clients(1), "2 clients are named 'c0'"),
        ([(np.eye(2), [0, 1])], "must be fg.Client objects, got a tuple"),
    ],
)
def test_impossible_sets_of_clients(parties, words):
    with pytest.raises(InvalidData, match=words):
        fit(fg.AFL(), parties)


def test_a_single_class_is_refused():
    with pytest.raises(InvalidData, match="at least two classes, got 1"):
        fg.AFL().fit([fg.Client("a", np.eye(3), [1, 1, 1])])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("", np.ones((1, 1)), [0]), "non-empty string"),
        (("a", np.ones((2, 1)), [0]), "'a': 2 samples in x but 1 labels in y"),
        (("a", np.ones(2), [0, 1]), r"'a': x must have shape \(n, d\)"),
        (("a", np.ones((1, 1)), [0.5]), "'a': y: labels must be whole numbers"),
        (("a", np.ones((1, 1)), [0], np.ones((1, 1))), "both x_test and y_test"),
        (("a", [[1, 2], [3]], [0, 1]), "'a': x is not an array of numbers"),
        (("a", np.ones((1, 1)), [0], np.ones((1, 2)), [0]), r"shape \(1,\), x_test \(2,\)"),
    ],
)
def test_bad_clients(arguments, words):
    with pytest.raises(InvalidData, match=words):
        fg.Client(*arguments)


def test_a_table_and_its_labels_are_no_clients():
    x, y = np.eye(4), [0, 1, 0, 1]
    for given in ((x, y), ([x], y), (x,), ([fg.Client("a", x, y)], [0])):
        with pytest.raises(InvalidData, match=r"got a \w+; give a list of clients.*GramClassifier\(\).fit\(x, y\)"):
            fg.FedGram().fit(*given)
