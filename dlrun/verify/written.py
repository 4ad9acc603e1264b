"""The numbers in files that a run has written, with places: arrays of NumPy, HDF5 and MATLAB, TensorBoard's events,
SQLite's tables.

Of other files, such as pictures, whether two hold the same.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import re
import sqlite3
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

LARGEST = 1 << 22  # bytes of a file that is read
DATABASE = b"SQLite format 3\0"
HDF5 = b"\x89HDF\r\n\x1a\n"
MATLAB = b"MATLAB 5.0 MAT-file"
ARCHIVE = b"PK\x03\x04"
UNPACK = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ": lzma.decompress}
DATED = re.compile(rb"/(?:Creation|Mod)Date ?\([^)]*\)")  # in a PDF
NEAR = 3 / 255  # so far apart may two pixels be by rounding: a line is drawn across parts of them
MODELS = (b"keras_version", b"layer_names", b"saved_model", b"_CHECKPOINTABLE_OBJECT_GRAPH")  # beside weights
WEIGHTS = ".weights.h5"  # what Keras 3 has all names of such files end in, which have none of these marks
MOST = 2000  # numbers of a file that are read
Place = tuple[str, float, int]  # what the number is called in its file, the number, and how many rows there are


def numbers_in(file: Path) -> list[Place]:
    """Return the numbers of arrays, of TensorBoard's events, and of tables; none of other files, nor of broken ones."""
    found: list[Place] = []
    if not file.is_file() or file.stat().st_size > LARGEST:
        return found
    with suppress(ImportError, OSError, ValueError, KeyError, struct.error, IndexError, sqlite3.Error):
        if file.suffix in (".npy", ".npz"):
            found = list(_of_arrays(file))
        elif "tfevents" in file.name:
            scalars = [scalar for record in _records(file.read_bytes()) for scalar in _of_event(record)]
            counts = Counter(tag for tag, _ in scalars)
            found = [(tag, number, counts[tag]) for tag, number in scalars]
        elif (head := file.read_bytes()[:64]).startswith(DATABASE):
            found = list(_of_database(file))
        elif head.startswith(HDF5) and not (file.name.endswith(WEIGHTS) or _is_model(file.read_bytes())):
            found = list(_of_hdf5(file))
        elif head.startswith(MATLAB):
            found = list(_of_matlab(file))
    return found[:MOST]


def holds_same(one: Path, other: Path) -> bool:
    """Whether two files hold the same as far as can be told: of those whose numbers are known elsewhere, they do.

    Those are arrays, TensorBoard's, SQLite's, and what is pickled, with models and what is beside them. Of what is
    compressed, or a ZIP archive, what is in it is compared: beside it is when it was written.
    """
    heads = [_unpacked(file.read_bytes()[:LARGEST]) if file.is_file() else b"" for file in (one, other)]
    if not all(heads) or any(map(_is_known, (one, other), heads)):
        return True
    if heads[0].startswith(ARCHIVE) and (parts := [_members(file) for file in (one, other)])[0]:
        return parts[0] == parts[1]
    return DATED.sub(b"", heads[0]) == DATED.sub(b"", heads[1]) or _looks_same(one, other)


def _unpacked(data: bytes) -> bytes:
    """Return what is compressed, or the data as they are."""
    unpack = next((unpack for mark, unpack in UNPACK.items() if data.startswith(mark)), None)
    with suppress(OSError, EOFError, ValueError, lzma.LZMAError):
        return unpack(data)[:LARGEST] if unpack else data
    return data


def _members(archive: Path) -> dict[str, int]:
    """Return the checksum of each file in a ZIP archive; none of a broken one."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(archive) as opened:
        return {member.filename: member.CRC for member in opened.infolist()}
    return {}


def _is_known(file: Path, head: bytes) -> bool:
    read = (
        file.name.endswith((".npy", ".npz", ".keras", ".index", WEIGHTS))
        or "tfevents" in file.name
        or ".data-" in file.name
    )
    pickled = head[:1] == b"\x80" or (head.startswith(ARCHIVE) and b"data.pkl" in head)  # of torch.save()
    arrays = head.startswith((HDF5, MATLAB)) and bool(numbers_in(file))
    return read or pickled or arrays or head.startswith(DATABASE) or _is_model(head)


def _is_model(data: bytes) -> bool:
    """Whether a file holds the weights of a model of Keras or TensorFlow, or what lies beside them."""
    return any(mark in data for mark in MODELS)


def _looks_same(one: Path, other: Path) -> bool:
    """Whether two files are pictures whose pixels differ by no more than rounding."""
    with suppress(Exception):  # no pictures, or no library that reads such
        from matplotlib.image import imread

        first, second = (imread(str(file)).astype("float64") for file in (one, other))
        scale = 255.0 if max(first.max(), second.max()) > 1 else 1.0
        return bool(first.shape == second.shape and abs(first - second).max() <= NEAR * scale)
    return False


def _of_arrays(file: Path) -> Iterator[Place]:
    import numpy as np

    read = np.load(file, allow_pickle=False)
    yield from _of_named({"": read} if isinstance(read, np.ndarray) else {name: read[name] for name in read.files})


def _of_named(arrays: Mapping[str, Any]) -> Iterator[Place]:
    for name, array in arrays.items():
        rows = len(array) if array.ndim else 1
        yield f"length of {name}".rstrip(), float(array.size), 1
        if array.dtype.kind in "fiub":
            for place, number in enumerate(array.ravel()[:MOST].tolist()):
                yield f"{name}[{place}]", float(number), rows


def _of_database(file: Path) -> Iterator[Place]:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as kept:
        tables = [name for (name,) in kept.execute("select name from sqlite_master where type = 'table' order by name")]
        for name in tables:
            made = kept.execute('select * from "{}" limit {}'.format(name.replace('"', '""'), MOST))
            columns, rows = [column[0] for column in made.description], made.fetchall()
            yield f"length of {name}", float(len(rows)), 1
            for place, row in enumerate(rows):
                for column, value in zip(columns, row, strict=True):
                    if isinstance(value, (int, float)):
                        yield f"{name}[{place}].{column}", float(value), len(rows)


def _of_hdf5(file: Path) -> Iterator[Place]:
    import h5py  # type: ignore[import-untyped]
    import numpy as np

    arrays: dict[str, object] = {}
    with h5py.File(file, "r") as opened:

        def note(name: str, part: h5py.Group | h5py.Dataset) -> None:
            arrays.update({f"{name}@{key}": value for key, value in part.attrs.items()})
            arrays.update({name: part[()]} if isinstance(part, h5py.Dataset) else {})

        note("", opened)
        opened.visititems(note)
    yield from _of_named({name: np.asarray(value) for name, value in arrays.items()})


def _of_matlab(file: Path) -> Iterator[Place]:
    import numpy as np
    from scipy.io import loadmat  # type: ignore[import-untyped]

    yield from _of_named({k: np.asarray(v) for k, v in loadmat(str(file)).items() if not k.startswith("__")})


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a TFRecord file: each has its length, 4 bytes of a checksum, itself, 4 bytes of another."""
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def _of_event(record: bytes) -> Iterator[tuple[str, float]]:
    """Yield tag and value of each scalar of an Event: field 5 is its Summary, whose fields 1 are values."""
    for number, summary in _fields(record):
        if number == 5 and isinstance(summary, bytes):
            for _, value in _fields(summary):
                if isinstance(value, bytes):
                    yield from _of_value(value)


def _of_value(value: bytes) -> Iterator[tuple[str, float]]:
    """Yield a scalar: 1 is its tag, 2 a float, 8 a tensor (of which 4 are its bytes, 5 floats, 6 doubles)."""
    fields = dict(_fields(value))
    tag = fields.get(1, b"")
    name = tag.decode(errors="replace") if isinstance(tag, bytes) else ""
    if isinstance(number := fields.get(2), float):
        yield name, number
    elif isinstance(tensor := fields.get(8), bytes):
        parts = dict(_fields(tensor))
        content = parts.get(4) or parts.get(5)
        if isinstance(content, float):
            yield name, content
        elif isinstance(content, bytes) and len(content) == 4 and parts.get(1) == 1:  # a float32
            yield name, struct.unpack("<f", content)[0]


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield number and value of each field of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        elif kind == 2:
            length, at = _varint(message, at)
            yield key >> 3, message[at : at + length]
            at += length
        else:
            size, form = (8, "<d") if kind == 1 else (4, "<f")
            yield key >> 3, float(struct.unpack_from(form, message, at)[0])
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def said(number: float) -> str:
    """Return a number with the digits that rounding leaves."""
    return f"{number:.9g}" if math.isfinite(number) else str(number)
