"""A process that has imported the framework, from which the scripts that tests run fork; each has its own streams,
environment, folder and launcher, as a process that Python starts. To import PyTorch takes longer than most of them run.

``serve`` is that process, until its standard input ends. ``hand_over`` is what a started Python does then.
"""

import gc
import os
import random
import runpy
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

VARIABLE = "DLRUN_TEST_WARM"  # names the socket


def hand_over() -> None:
    """Let the process behind ``VARIABLE`` run this one's script, and end with its exit code; return if it does not."""
    door, words = os.environ.pop(VARIABLE, ""), sys.orig_argv[1:]
    if not door or not words or not (words[0] == "-m" or words[0].endswith(".py")):
        return
    from dlrun.verify.tracer import warm

    code = warm.hand_over(door, words)
    if code is not None:
        os._exit(code)


def serve(stream: int, frameworks: list[str]) -> None:
    """Fork for each script that is asked for, and be it."""
    from dlrun.verify.tracer import warm

    def preload() -> None:
        gc.disable()
        for framework in frameworks:
            import_module(framework)
        if frameworks[-1] != "tensorflow":
            import_module(f"dl_comm.{frameworks[-1]}")
        gc.freeze()  # what a fork never looks at, it never copies

    words = warm.serve(socket.socket(fileno=stream), preload)
    gc.enable()
    draw_anew()
    sleep_if_asked()
    with ended_at_once():
        be(words)


def draw_anew() -> None:
    """Give an unseeded script random numbers of its own, as each process has."""
    if torch := sys.modules.get("torch"):
        torch.seed()
    if "tensorflow" in sys.modules:
        import_module("tensorflow.python.eager.context").context()._rng = random.Random()


def sleep_if_asked() -> None:
    """Have ranks sleep before they touch files, as JITTER says."""
    if seed := os.environ.get("JITTER"):
        from jitter import Jitter

        Jitter(seed).install()


@contextmanager
def ended_at_once() -> Iterator[None]:
    """End the process as Python does with what the script ends with."""
    from dlrun.verify.tracer import warm

    code = 0
    try:
        yield
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        code = 1
        sys.excepthook(type(error), error, error.__traceback__.tb_next.tb_next.tb_next)
    warm.leave(code)


def be(words: list[str]) -> None:
    """Run a script as ``python words`` does: it is ``__main__``, and modules are looked for beside it first."""
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    script, space = Path(words[0]), vars(sys.modules["__main__"])
    sys.argv, sys.path[0] = words, str(script.resolve().parent)
    code = compile(script.read_bytes(), words[0], "exec")
    space.clear()
    space.update(__name__="__main__", __file__=words[0], __builtins__=__builtins__)
    exec(code, space)
