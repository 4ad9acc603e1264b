"""What is reduced: single arrays by size, and the gradient sets of real models."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dlrun.errors import DlrunError

# Bytes of one element of each type that can be measured.
WIDTHS = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}

_UNITS = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


@dataclass(frozen=True)
class Case:
    """One list of arrays that is reduced in one call: a name, and the number of elements of each array."""

    name: str
    counts: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The elements of all arrays together."""
        return sum(self.counts)


def bytes_as_text(count: float) -> str:
    """4096 -> '4 KB'; powers of 1024, at most one decimal."""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if count >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value == int(value) or value >= 100 else f"{value:.1f} {unit}"
    return f"{count:.0f} B"


def bytes_from_text(text: str) -> int:
    """'4KB' -> 4096. Units B, KB, MB, GB are powers of 1024; a bare number is bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise DlrunError(f"'{text}' is not a size", "sizes look like 4, 64KB, 16MB or 1GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def sizes_from_text(text: str) -> list[int]:
    """'4,64KB' -> the two sizes; '4:256MB' -> every power of two between them, both ends included. Bytes."""
    sizes: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        if not colon:
            sizes.append(bytes_from_text(part))
            continue
        low, high = bytes_from_text(first), bytes_from_text(last)
        if not 0 < low <= high:
            raise DlrunError(f"'{part}' is not a range of sizes", "the first is at least 1 byte and at most the last")
        sizes += [low * 2**i for i in range(int(math.log2(high / low)) + 1)]
    return sizes


def array_case(size: int, dtype: str) -> Case:
    """One array of `size` bytes of `dtype`, a numpy name or bfloat16; named by its size."""
    if dtype not in WIDTHS:
        raise DlrunError(f"'{dtype}' is not an element type", f"types are {', '.join(WIDTHS)}")
    count, rest = divmod(size, WIDTHS[dtype])
    if rest or not count:
        raise DlrunError(f"{size} bytes is no whole number of {dtype}", f"{dtype} takes {WIDTHS[dtype]} bytes each")
    return Case(bytes_as_text(size), (count,))


def _resnet50() -> list[int]:
    """Parameters of ResNet-50 with bottlenecks, 1000 classes (He et al., arXiv 1512.03385), in order of definition."""
    counts = [64 * 3 * 7 * 7, 64, 64]
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            convolutions = ((inputs * width, width), (width * width * 9, width), (width * 4 * width, 4 * width))
            for weights, channels in convolutions:
                counts += [weights, channels, channels]
            if block == 0:
                counts += [inputs * 4 * width, 4 * width, 4 * width]
            inputs = 4 * width
    return [*counts, 2048 * 1000, 1000]


def _gpt2() -> list[int]:
    """Parameters of GPT-2 small: 12 blocks, width 768, vocabulary 50257, context 1024, tied output layer."""
    d = 768
    block = [d, d, d * 3 * d, 3 * d, d * d, d, d, d, d * 4 * d, 4 * d, 4 * d * d, d]
    return [50257 * d, 1024 * d, *(block * 12), d, d]


def _cnn() -> list[int]:
    """Parameters of the digits example's network (`examples/torch_mnist`)."""
    return [16 * 9, 16, 32 * 16 * 9, 32, 64 * 32 * 16, 64, 10 * 64, 10]


MODELS = {"resnet50": _resnet50, "gpt2": _gpt2, "cnn": _cnn}


def model_case(name: str) -> Case:
    """The gradient set of a known model. A backward pass yields gradients last layer first, and so does this."""
    if name not in MODELS:
        raise DlrunError(f"no model is called '{name}'", f"known are {', '.join(MODELS)}")
    return Case(name, tuple(reversed(MODELS[name]())))


def cases(sizes: Sequence[int], models: Sequence[str], dtype: str) -> list[Case]:
    """The cases of one run: arrays of the given sizes (bytes), then the gradient sets of the named models."""
    return [*(array_case(size, dtype) for size in sizes), *(model_case(name) for name in models)]
