"""A GPU without a framework: CUDA's driver through ctypes, for the bench's ranks."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

_PINNED = 1  # CU_MEMHOSTALLOC_PORTABLE
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class Gpu:
    """The first GPU that this process sees, its context current in this thread. Raises OSError where there is none."""

    def __init__(self) -> None:
        name = os.environ.get("DL_COMM_CUDA_LIBRARY") or "libcuda.so.1"
        try:
            self._driver = ctypes.CDLL(name)
        except OSError as error:
            raise OSError(f"CUDA's driver is not here ({error})") from None
        device, context, self.stream = ctypes.c_int(), ctypes.c_void_p(), 0
        for function, arguments in (
            ("cuInit", (0,)),
            ("cuDeviceGet", (ctypes.byref(device), 0)),
            ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
            ("cuCtxPushCurrent_v2", (context,)),
        ):
            self._call(function, *arguments)
        self.stream, self._other = self._new_stream(), self._new_stream()

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise OSError(f"{function}: {(text.value or b'').decode() or code}")

    def _new_stream(self) -> int:
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        return stream.value or 0

    def memory(self, nbytes: int) -> int:
        """The address of so many bytes on the GPU."""
        address = ctypes.c_ulonglong()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def pinned(self, nbytes: int) -> np.ndarray:
        """So many bytes of the host that the GPU copies to and from by itself."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(nbytes), _PINNED)
        return np.frombuffer((ctypes.c_char * nbytes).from_address(address.value or 0), np.uint8)

    def _copy(self, function: str, to: int, start: int, nbytes: int, stream: int) -> None:
        # Addresses of the host and of the device are passed alike.
        words = (ctypes.c_ulonglong(to), ctypes.c_ulonglong(start), ctypes.c_size_t(nbytes))
        self._call(function, *words, ctypes.c_void_p(stream))

    def upload(self, address: int, host: np.ndarray) -> None:
        """Start copying pinned memory to the GPU."""
        self._copy("cuMemcpyHtoDAsync_v2", address, host.ctypes.data, host.nbytes, self.stream)

    def download(self, host: np.ndarray, address: int, *, meanwhile: bool = False) -> None:
        """Start copying to pinned memory; ``meanwhile``: beside what goes the other way."""
        stream = self._other if meanwhile else self.stream
        self._copy("cuMemcpyDtoHAsync_v2", host.ctypes.data, address, host.nbytes, stream)

    def wait(self) -> None:
        """Return once all that was started is done."""
        for stream in (self.stream, self._other):
            self._call("cuStreamSynchronize", ctypes.c_void_p(stream))
