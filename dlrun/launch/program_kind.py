"""What is launched: a script of Python's, a module, or a program; and the words for what is none of them."""

from __future__ import annotations

import os
from pathlib import Path

from dlrun.errors import DlrunError, no_script
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.site import which

_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".f", ".f90", ".go", ".rs")  # of programs that are compiled first


def kind_of(plan: LaunchPlan) -> str:
    """Return what the program is: "module", "script" (Python's) or "command"; raises DlrunError where there is none."""
    if plan.module:
        from dlrun.launch.module import check

        check(plan.program[0], plan.cwd, dict(plan.env).get("PYTHONPATH", ""))
        return "module"
    script = plan.program[0]
    if not script:
        raise DlrunError("the name of the script is empty", "name one: dlrun launch -n 2 train.py")
    path = Path(plan.cwd, script)
    if path.suffix == ".ipynb":
        hint = f"make one of it: jupyter nbconvert --to script {script}"
        raise DlrunError(f"{script} is a notebook, and no script", hint)
    if path.is_file() and not script.endswith((".py", ".pyw")):
        if os.access(path, os.X_OK):
            return "command"
        _is_python(path, script)
    if path.is_file():
        return "script"
    program = which(script, os.environ) if "/" not in script and not script.endswith(".py") else None
    if path.is_dir():
        hint = f"the program of this name: {program}" if program else "a package's name goes after -m"
        raise DlrunError(f"{script} is a folder, and no script", hint)
    if program:
        return "command"
    raise no_script(path)


def _is_python(path: Path, name: str) -> None:
    """Raise DlrunError where the file of another ending is no Python script, and so nothing that could be run."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        source = path.suffix.lower() in _SOURCES
        hint = "compile it, and launch the program" if source else f"if it is a program: chmod +x {name}"
        raise DlrunError(f"{name} is no Python script, and it is not executable", hint) from None
