"""What a script writes for TensorBoard: each scalar is a line like a printed one, with its tag and its step.

The writer's file is written by a thread of its own, from time to time: it is no place to look for numbers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dlrun.sandbox.imports import AfterImport
from dlrun.verify.tracer.recorder import Recorder, called_by_dl_comm, is_user_file, user_frame

WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
FUNCTIONS = "tensorboard.summary._tf.summary"  # which is tf.summary

NAMES = {"name": "tag", "tag": "tag", "scalar_value": "number", "data": "number", "global_step": "step", "step": "step"}


def install(recorder: Recorder) -> None:
    """Note what the script's own lines add: on rank 0 what is shown, elsewhere what would be."""
    for name in (*WRITERS, FUNCTIONS):
        follow = functools.partial(_follow_functions if name == FUNCTIONS else _follow, recorder)
        if module := sys.modules.get(name):
            follow(module)
        else:
            sys.meta_path.insert(0, AfterImport(name, follow))


def _follow(recorder: Recorder, module: ModuleType) -> None:
    writer = module.SummaryWriter
    for name, lines in {"add_scalar": _of_scalar, "add_scalars": _of_scalars}.items():
        setattr(writer, name, _noted(recorder, getattr(writer, name), lines))
    made = writer.__init__

    @functools.wraps(made)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if user_frame() is not None:
            recorder.note("file", path=str(Path(self.log_dir).absolute() / "tfevents"), how="write", was="")

    writer.__init__ = noted


def _follow_functions(recorder: Recorder, module: ModuleType) -> None:
    module.scalar = _noted(recorder, module.scalar, _of_scalar, of_writer=False)  # type: ignore[attr-defined]


def _noted(
    recorder: Recorder, add: Callable[..., Any], lines: Callable[..., Iterator[str]], of_writer: bool = True
) -> Callable[..., Any]:
    @functools.wraps(add)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if is_user_file(sys._getframe(1).f_code.co_filename) or called_by_dl_comm():  # not a callback of Keras's
            for line in lines(*args[of_writer:], **kwargs):
                recorder.note("shown", text=line)
                if recorder.rank == 0:
                    recorder.note("print", text=line)
        return add(*args, **kwargs)

    return noted


def _of_scalar(*args: Any, **kwargs: Any) -> Iterator[str]:
    """Yield the line of a tag, its number, and the step if there is one: PyTorch and TensorFlow name them otherwise."""
    given = dict(zip(("tag", "number", "step"), args, strict=False))
    given |= {NAMES[name]: value for name, value in kwargs.items() if name in NAMES}
    tag, number, step = given["tag"], given["number"], given.get("step")
    at = "" if step is None else f" at step {int(step)}"
    yield f"{tag}: {float(number):.9g}{at}"


def _of_scalars(main_tag: str, tag_scalar_dict: Any, global_step: Any = None, *_: Any, **__: Any) -> Iterator[str]:
    for tag, value in tag_scalar_dict.items():
        yield from _of_scalar(f"{main_tag}/{tag}", value, global_step)
