"""Where an array lies that speaks DLPack alone. NumPy's capsules stand in for those of arrays on a GPU."""

from __future__ import annotations

import ctypes
import gc
import struct

import numpy as np
import pytest
from dl_comm import CommError
from dl_comm.arrays import fresh
from dl_comm.compare_ranks import _digest as digest_of
from dl_comm.device import is_on_gpu, on_gpu
from dl_comm.dlpack import borrowed


class Before:
    """An array that says it is on a GPU, and notes for which stream it was asked; its DLPack is older than 1.0."""

    def __init__(self, values, device=2):
        self.values, self.device, self.stream = values, device, None

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, *, stream):
        self.stream = stream
        return self.values.__dlpack__()


class OnGpu(Before):
    """The same with DLPack 1.0, whose capsules say more."""

    def __dlpack__(self, *, stream, max_version=None):
        self.stream = stream
        return self.values.__dlpack__(max_version=max_version)


@pytest.mark.parametrize("kind", [Before, OnGpu])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8"])
def test_address_length_and_type_are_those_of_the_array(dtype, kind):
    values = np.arange(24).astype(dtype).reshape(2, 3, 4)
    for part in (values, values[1], values[1, 2, 3:], values[:, :0]):
        array = kind(part)
        assert is_on_gpu(array)
        address = part.__array_interface__["data"][0]
        assert on_gpu(array).buffer[1:] == (part.size, dtype)
        assert part.size == 0 or on_gpu(array).buffer[0] == address
        assert array.stream == 1  # CUDA's default stream, which the reduction begins on
        assert on_gpu(array).stream is None  # and nobody says what stream the array is used on
    gc.collect()
    assert values.sum() == 276  # the capsules are gone, the array is not


def test_arrays_elsewhere_and_with_gaps_are_not_taken():
    assert not is_on_gpu(OnGpu(np.zeros(3), device=1))
    assert not is_on_gpu(np.zeros(3))
    with pytest.raises(CommError, match=r"shape \(2, 2\) on a GPU is not contiguous"):
        borrowed(OnGpu(np.zeros((2, 4))[:, ::2]))


def test_arrays_that_may_not_be_changed_or_are_not_handed_over_are_refused_with_the_reason():
    values = np.zeros(3)
    values.flags.writeable = False
    with pytest.raises(CommError, match="a OnGpu on a GPU is not handed over by DLPack: it is read-only"):
        borrowed(OnGpu(values))
    with pytest.raises(CommError, match="a Before on a GPU is not handed over by DLPack: Cannot export readonly array"):
        borrowed(Before(values))


def test_types_that_are_not_reduced_have_their_names():
    assert [borrowed(OnGpu(np.zeros(2, dtype)))[2] for dtype in ("c8", "?", "u4")] == ["complex64", "bool8", "uint32"]


def capsule_of(name, major):
    """A capsule of this name that begins with a version."""
    memory = ctypes.create_string_buffer(struct.pack("II", major, 2) + bytes(100))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return memory, name, new(ctypes.addressof(memory), name, None)


@pytest.mark.parametrize(
    ("name", "major", "said"),
    [
        (b"dltensor_versioned", 2, r"its capsule is of version 2\.2, and 1 is understood"),
        (b"used_dltensor", 1, "its capsule is called 'used_dltensor'"),
    ],
)
def test_capsules_of_another_kind_are_refused(monkeypatch, name, major, said):
    kept = capsule_of(name, major)
    monkeypatch.setattr(OnGpu, "__dlpack__", lambda self, **_: kept[2])
    with pytest.raises(CommError, match=said):
        borrowed(OnGpu(np.zeros(2)))


def test_bits_are_compared_where_the_array_can_be_brought_to_the_host():
    numbers = np.arange(3.0)
    array = OnGpu(numbers)
    with pytest.raises(CommError, match="a OnGpu has no bits that can be compared"):
        digest_of(array)
    array.copy_to_host, array.shape = numbers.copy, numbers.shape  # as Numba's
    assert digest_of(array) == digest_of(numbers)


def test_arrays_that_only_could_be_on_a_gpu_are_taken_where_they_are():
    class Jax(np.lib.mixins.NDArrayOperatorsMixin):
        """As jax's arrays: the class has the interface, and arrays in the host's memory refuse it."""

        def __array__(self, dtype=None, copy=None):
            return np.full(3, 7.0)

        @property
        def __cuda_array_interface__(self):
            raise AttributeError("only for GPU buffers")

    assert not is_on_gpu(Jax())
    assert np.array_equal(fresh(Jax()), [7, 7, 7])
