"""Where an array lies that speaks DLPack: the few fields of its capsule that are needed, without a library for it."""

from __future__ import annotations

import ctypes
from typing import Any

from dl_comm.errors import CommError

CUDA, CUDA_MANAGED = 2, 13  # DLDeviceType
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}  # DLDataTypeCode
_LEGACY_STREAM = 1  # what ``__dlpack__`` calls CUDA's default stream
_NEWEST = (1, 0)  # the version whose capsules are understood; those of a later 1.x have the same beginning
_READ_ONLY = 1  # in _Versioned.flags


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


class _Versioned(ctypes.Structure):
    """What a capsule holds since DLPack 1.0; before it held the tensor at its beginning."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def lies_on_cuda(array: Any) -> bool:
    """Whether the array speaks DLPack and lies on a GPU of CUDA's."""
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        return False
    return int(array.__dlpack_device__()[0]) in (CUDA, CUDA_MANAGED)


def borrowed(array: Any) -> tuple[int, int, str]:
    """Return the address, the number of elements and the type's name of an array on the GPU.

    The array's framework makes its values ready for the default stream. The capsule is given back at once: the caller
    keeps the array alive. Raises CommError where the array is read-only or not contiguous, or its framework hands it
    to nobody.
    """
    return described(_capsule(array), array)


def described(capsule: Any, array: Any) -> tuple[int, int, str]:
    """Return the same of the array that a capsule is of. Raises CommError as ``borrowed`` does."""
    tensor = _tensor(capsule, array)
    shape = tensor.shape[: tensor.ndim]
    count, empty = 1, 0 in shape
    for place in reversed(range(tensor.ndim)):
        if tensor.strides and shape[place] != 1 and tensor.strides[place] != count and not empty:
            raise CommError(f"an array of shape {tuple(shape)} on a GPU is not contiguous", "pass a contiguous copy")
        count *= shape[place]
    lanes = "" if tensor.lanes == 1 else f"x{tensor.lanes}"
    name = f"{_KINDS.get(tensor.code, 'unknown')}{tensor.bits}{lanes}"
    return (tensor.data or 0) + tensor.byte_offset, count, name


def _capsule(array: Any) -> Any:
    try:
        return array.__dlpack__(stream=_LEGACY_STREAM, max_version=_NEWEST)
    except TypeError:  # a framework from before DLPack 1.0
        pass
    except BufferError as refusal:
        raise _not_handed_over(array, refusal) from refusal
    try:
        return array.__dlpack__(stream=_LEGACY_STREAM)
    except BufferError as refusal:
        raise _not_handed_over(array, refusal) from refusal


def _not_handed_over(array: Any, why: object) -> CommError:
    return CommError(f"a {type(array).__name__} on a GPU is not handed over by DLPack: {why}", "pass a copy")


def _tensor(capsule: Any, array: Any) -> _Tensor:
    name_of, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    name = name_of(capsule)
    if name == b"dltensor":
        return _Tensor.from_address(pointer(capsule, name))
    if name != b"dltensor_versioned":
        raise _not_handed_over(array, f"its capsule is called {(name or b'').decode()!r}")
    told = _Versioned.from_address(pointer(capsule, name))
    if told.major > _NEWEST[0]:
        raise _not_handed_over(array, f"its capsule is of version {told.major}.{told.minor}, and 1 is understood")
    if told.flags & _READ_ONLY:
        raise _not_handed_over(array, "it is read-only")
    tensor: _Tensor = told.tensor
    return tensor
