"""Where an array lies that speaks DLPack: the few fields of its capsule that are needed, without a library for it."""

from __future__ import annotations

import ctypes
from typing import Any

from dl_comm.errors import CommError

CUDA, CUDA_MANAGED = 2, 13  # DLDeviceType
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}  # DLDataTypeCode
_LEGACY_STREAM = 1  # what ``__dlpack__`` calls CUDA's default stream


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def lies_on_cuda(array: Any) -> bool:
    """Whether the array speaks DLPack and lies on a GPU of CUDA's."""
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        return False
    return int(array.__dlpack_device__()[0]) in (CUDA, CUDA_MANAGED)


def borrowed(array: Any) -> tuple[int, int, str]:
    """Return the address, the number of elements and the type's name of an array on the GPU.

    The array's framework makes its values ready for the default stream. The capsule is given back at once: the caller
    keeps the array alive. Raises CommError where the array is not contiguous.
    """
    capsule = array.__dlpack__(stream=_LEGACY_STREAM)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    shape = tensor.shape[: tensor.ndim]
    count, empty = 1, 0 in shape
    for place in reversed(range(tensor.ndim)):
        if tensor.strides and shape[place] != 1 and tensor.strides[place] != count and not empty:
            raise CommError(f"an array of shape {tuple(shape)} on a GPU is not contiguous", "pass a contiguous copy")
        count *= shape[place]
    name = f"{_KINDS.get(tensor.code, 'unknown')}{tensor.bits}"
    return (tensor.data or 0) + tensor.byte_offset, count, name
