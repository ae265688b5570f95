"""The places of layers in a vector, and tensors that share memory with arrays."""

import numpy as np

from fedgram.nets import net_for
from fedgram.nets.layers import as_tensor


def test_layers_follow_each_other_behind_the_buffers():
    net = net_for("cnn", (16, 16), 10, memory=True)
    ends = [net.buffers, *(part.stop for part in net.layer_slices)]
    assert [part.start for part in net.layer_slices] == ends[:-1]
    assert net.layer_slices[-1] == net.head
    assert len(net.layer_slices) == 6, "two convolutions, two normalisations, two dense layers"


def test_numbers_of_layers_include_the_buffers_and_no_memory():
    net = net_for("cnn", (16, 16), 10, memory=True)
    assert np.flatnonzero(net.numbers_of([False] * 6)).tolist() == list(range(net.buffers))
    head = net.numbers_of([False] * 5 + [True])
    assert head[net.head].all()
    assert head.sum() == net.buffers + net.head.stop - net.head.start
    assert net.numbers_of([True] * 6).sum() == net.own.start


def test_a_tensor_of_what_cannot_be_written_to_is_no_copy():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    array.flags.writeable = False
    seen = as_tensor(array[:, 1:])  # a warning would be an error here
    assert seen.tolist() == array[:, 1:].tolist()
    assert seen.data_ptr() == array[:, 1:].ctypes.data
