"""What scripts expect that load the operators of IBM's DDL themselves, by name, as DDL's own ``ddl.py`` does.

They look for ``ddl_MDR.so`` on ``LD_LIBRARY_PATH``, and ask Open MPI's variables who they are: without these each rank
takes itself for the only one, and trains alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dlrun.launch.plan import LaunchPlan

_FILE = "ddl_MDR.so"


def loads_operators(plan: LaunchPlan) -> bool:
    """Return whether a settled plan's script, or a ``ddl.py`` beside it, names the library."""
    script = Path(plan.cwd, plan.program[0])
    names = [Path(plan.cwd, "ddl.py")] if plan.kind == "module" else [script, script.with_name("ddl.py")]
    return plan.kind != "command" and any(_names_it(path) for path in names)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return LD_LIBRARY_PATH with the folder of the library in front; nothing where it is not installed."""
    from importlib.util import find_spec

    found = find_spec("dl_comm")  # it is not loaded
    for place in (found.submodule_search_locations if found else None) or ():
        folder = Path(place, "lib", "ddl")
        if (folder / _FILE).exists():
            left = [str(folder), *filter(None, [environ.get("LD_LIBRARY_PATH")])]
            return {"LD_LIBRARY_PATH": os.pathsep.join(left)}
    return {}


def _names_it(path: Path) -> bool:
    try:
        return _FILE.encode() in path.read_bytes()
    except OSError:
        return False
