"""GPUs for tests: the fake driver, compiled here, or the machine's own; and arrays on either, without a framework.

Programs on the ranks import this, too: they find the driver in ``DL_COMM_CUDA_LIBRARY``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE, DEVICEMAP


def compiled(folder: Path, *defines: str) -> Path:
    """Return the path of the fake driver, with its NCCL in the same library; ``defines`` say what it lacks."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) on PATH")
    library = folder / f"libfake{''.join(defines)}.so"
    sources = [str(HERE / "fake" / name) for name in ("cuda.c", "nccl.c", "ptx.c")]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", *(f"-D{one}" for one in defines)]
    subprocess.run(["cc", *flags, *sources, "-o", str(library), "-lpthread", "-lrt", "-lm"], check=True, timeout=60)
    return library


def aware_mpi(folder: Path, library: str) -> Path:
    """Return the path of an MPI that takes the fake's memory: a layer over the MPI library at this path."""
    layer, flags = folder / "libaware.so", ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    below = ["-Wl,--no-as-needed", library, f"-Wl,-rpath,{Path(library).parent}", "-ldl"]
    subprocess.run(["cc", *flags, str(HERE / "fake" / "mpi.c"), "-o", str(layer), *below], check=True, timeout=60)
    return layer


def real_driver() -> str:
    """Return the name of the machine's driver, or skip the test and say what is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("no CUDA driver (libcuda.so.1) is here")
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        pytest.skip("CUDA's driver finds no GPU")
    return "libcuda.so.1"


class Array:
    """An array on the GPU, as CuPy and others show theirs."""

    def __init__(self, gpu: Gpu, address: int, shape: tuple[int, ...], dtype: str, stream: int) -> None:
        self.gpu, self.address, self.shape, self.dtype, self.stream = gpu, address, shape, dtype, stream

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = "<V2" if self.dtype == "bfloat16" else np.dtype(self.dtype).str
        where = {"data": (self.address, False), "stream": self.stream}
        return {"shape": self.shape, "typestr": kind, "version": 3, **where}

    def get(self) -> np.ndarray:
        """A copy on the host."""
        return self.gpu.read(self)

    def copy(self) -> Array:
        """A new array on the GPU; goes through the host, in the order of the stream."""
        return self.gpu.array(self.gpu.read(self), self.stream, name=self.dtype)


class _Capsule(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class OnlyDlpack:
    """An array on the GPU's default stream that speaks DLPack alone."""

    def __init__(self, array: Array) -> None:
        self.array, self.shape = array, array.shape
        self.lengths = (ctypes.c_int64 * len(array.shape))(*array.shape)
        self.kept: list[_Capsule] = []

    def copy(self) -> OnlyDlpack:
        return OnlyDlpack(self.array.copy())

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int) -> Any:  # as before DLPack 1.0
        assert stream == 1  # the default one
        dtype = np.dtype(self.array.dtype)
        lengths = ctypes.cast(self.lengths, ctypes.POINTER(ctypes.c_int64))
        code = {"i": 0, "u": 1, "f": 2}[dtype.kind]
        self.kept.append(
            _Capsule(
                self.array.address, (2, 0), len(self.shape), code, dtype.itemsize * 8, 1, lengths, None, 0, None, None
            )
        )
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.kept[-1]), b"dltensor", None)


class Gpu:
    """The driver, its context current in this thread."""

    def __init__(self, library: str = "") -> None:
        self.driver = ctypes.CDLL(library or os.environ["DL_COMM_CUDA_LIBRARY"])
        self.kept: list[Any] = []
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        assert code == 0, f"{name} returned {code}"

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)
        return made.value or 0

    def pinned(self, nbytes: int) -> np.ndarray:
        memory = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(memory), ctypes.c_size_t(max(nbytes, 1)), MAPPED)
        return np.frombuffer((ctypes.c_char * nbytes).from_address(memory.value or 0), np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: str, stream: int = 0) -> Array:
        nbytes = max(1, int(np.prod(shape)) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize))
        address = ctypes.c_ulonglong()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return Array(self, address.value, shape, dtype, stream)

    def array(self, values: np.ndarray, stream: int = 0, *, late: float = 0.0, name: str = "") -> Array:
        """An array which the stream fills with the values, ``late`` seconds later; until then it holds no numbers."""
        made = self.empty(values.shape, name or values.dtype.name, stream)
        self.fill(made, values, late=late)
        return made

    def fill(self, array: Array, values: np.ndarray, *, late: float = 0.0) -> None:
        if late:
            self.later(array.stream, lambda: time.sleep(late))
        host = self.pinned(values.nbytes)
        host[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        to, start = ctypes.c_ulonglong(array.address), ctypes.c_void_p(host.ctypes.data)
        self.call("cuMemcpyHtoDAsync_v2", to, start, ctypes.c_size_t(values.nbytes), ctypes.c_void_p(array.stream))

    def read(self, array: Array) -> np.ndarray:
        """What the stream finds in the array when it comes to it."""
        dtype = np.dtype(np.uint16 if array.dtype == "bfloat16" else array.dtype)
        host = self.pinned(array.size * dtype.itemsize)
        start, to = ctypes.c_ulonglong(array.address), ctypes.c_void_p(host.ctypes.data)
        stream = ctypes.c_void_p(array.stream)
        self.call("cuMemcpyDtoHAsync_v2", to, start, ctypes.c_size_t(host.nbytes), stream)
        self.call("cuStreamSynchronize", stream)
        return host.view(dtype).reshape(array.shape).copy()

    def later(self, stream: int, work: Callable[[], object]) -> None:
        """Have the stream call ``work`` when it comes here."""
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: work())
        self.kept.append(function)
        self.call("cuLaunchHostFunc", ctypes.c_void_p(stream), function, None)

    # ---- of the fake alone ----

    def fail(self, function: str, nth: int, code: int) -> None:
        """The nth call of ``function`` from now on returns ``code``."""
        self.driver.fake_fail(function.encode(), nth, code)

    def calls(self) -> list[str]:
        """The names of the driver's functions that were called since ``forget``; none of a real one's."""
        if not self.is_fake:
            return []
        self.driver.fake_log.restype = ctypes.c_char_p
        return self.driver.fake_log().decode().split()

    def forget(self) -> None:
        if self.is_fake:
            self.driver.fake_forget()

    def threads(self) -> int:
        """How many threads have called the driver; 0 of a real one."""
        return int(self.driver.fake_threads()) if self.is_fake else 0

    @property
    def is_fake(self) -> bool:
        return hasattr(self.driver, "fake_log")
