"""On the path of the scripts that tests run: optimizers leave torch's compiler alone, as under ``dlrun verify``.

To load it takes each rank as long as to load torch itself, and no script here compiles anything. Where a process has
loaded torch already, scripts fork from it (``warmed.py``). With a seed in JITTER ranks sleep before they touch files
(``jitter.py``).
"""

import os
import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


class AfterTorch:
    """Finds torch for the import system, and once it is loaded leaves its compiler out."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def loaded(module: ModuleType) -> None:
                load(module)
                leave_compiler_out()

            spec.loader.exec_module = loaded
        return spec


def leave_compiler_out() -> None:
    """Do what the tracer of ``dlrun verify`` does, without importing its package."""
    home = find_spec("dlrun").origin
    spec = spec_from_file_location("compiler", Path(home).parent / "verify" / "tracer" / "compiler.py")
    compiler = module_from_spec(spec)
    spec.loader.exec_module(compiler)
    compiler.leave_out()


sys.meta_path.insert(0, AfterTorch())
if "DLRUN_TEST_WARM" in os.environ:
    from warmed import hand_over

    hand_over()
if "JITTER" in os.environ:
    from warmed import sleep_if_asked

    sleep_if_asked()
    others = [Path(place, "sitecustomize.py") for place in sys.path if Path(place) != Path(__file__).parent]
    if another := next(filter(Path.is_file, others), None):  # stand-ins
        runpy.run_path(str(another))
