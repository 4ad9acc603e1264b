"""The calls of ``dl_comm`` itself, Cray's names for arrays, in a script that trains with PyTorch.

Which of the arrays that it averages are gradients is not told: what a step uses is compared with what backward made.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from dlrun.sandbox.imports import AfterImport
from dlrun.verify.tracer.importing import followed
from dlrun.verify.tracer.recorder import Recorder
from dlrun.verify.tracer.told import tell
from dlrun.verify.tracer.training import Training

FACE = "dl_comm"
FOLLOWED = ("gradients", "broadcast", "average", "barrier", "finalize")


class Plain:
    """Wraps the functions of ``dl_comm`` when it is imported."""

    def __init__(self, recorder: Recorder, training: Training) -> None:
        self.recorder, self.training = recorder, training

    def wrap(self, face: ModuleType) -> None:
        """Put a wrapper around each function that communicates."""
        self.recorder.note("face")
        tell(self.recorder, face)
        for name in FOLLOWED:
            act = self._broadcast if name == "broadcast" else None
            setattr(face, name, followed(self.recorder, f"{FACE}.{name}", getattr(face, name), act))

    def _broadcast(self, function: Any, arrays: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        arrays = list(arrays)
        for array in arrays:
            held = isinstance(array, torch.Tensor)
            self.training.broadcast.add(array.data_ptr() if held else array.__array_interface__["data"][0])
        return function(arrays, *args, **kwargs), {}


def install(recorder: Recorder, training: Training) -> None:
    """Wait for the script to import ``dl_comm``."""
    sys.meta_path.insert(0, AfterImport(FACE, Plain(recorder, training).wrap))
