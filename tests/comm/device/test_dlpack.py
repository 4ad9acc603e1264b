"""Where an array lies that speaks DLPack alone. NumPy's capsules stand in for those of arrays on a GPU."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from dl_comm import CommError
from dl_comm.device import is_on_gpu, on_gpu
from dl_comm.dlpack import borrowed


class OnGpu:
    """An array that says it is on a GPU, and notes for which stream it was asked."""

    def __init__(self, values, device=2):
        self.values, self.device, self.stream = values, device, None

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, *, stream):
        self.stream = stream
        return self.values.__dlpack__()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8"])
def test_address_length_and_type_are_those_of_the_array(dtype):
    values = np.arange(24).astype(dtype).reshape(2, 3, 4)
    for part in (values, values[1], values[1, 2, 3:], values[:, :0]):
        array = OnGpu(part)
        assert is_on_gpu(array)
        address = part.__array_interface__["data"][0]
        assert on_gpu(array).buffer[1:] == (part.size, dtype)
        assert part.size == 0 or on_gpu(array).buffer[0] == address
        assert array.stream == 1  # CUDA's default stream, which the reduction begins on
    gc.collect()
    assert values.sum() == 276  # the capsules are gone, the array is not


def test_arrays_elsewhere_and_with_gaps_are_not_taken():
    assert not is_on_gpu(OnGpu(np.zeros(3), device=1))
    assert not is_on_gpu(np.zeros(3))
    with pytest.raises(CommError, match=r"shape \(2, 2\) on a GPU is not contiguous"):
        borrowed(OnGpu(np.zeros((2, 4))[:, ::2]))
