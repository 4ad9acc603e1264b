"""Who may import whom: read from the import statements, and seen in fresh interpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DLRUN, DL_COMM = ROOT / "dlrun", ROOT / "comm" / "dl_comm"

HEAVY = {"libcst", "numpy", "jinja2", "yaml", "mpi4py", "torch", "tensorflow", "keras", "matplotlib", "dl_comm"}

# A folder or file of dlrun -> those that it may import. The rest is forbidden to it.
MAY_IMPORT = {
    "errors": set(),
    "render": set(),
    "progress": set(),
    "package": set(),
    "textfile": set(),
    "sandbox": {"package"},
    "rank": {"sandbox"},
    "port": {"errors", "render", "package"},
    "launch": {"errors", "textfile", "render", "rank", "progress", "sandbox"},
    "bench": {"errors", "launch"},
    "tune": {"errors", "textfile", "progress", "bench", "launch", "scale"},
    "timeline": {"errors", "bench"},
    "scale": {"errors", "render", "bench", "launch", "sandbox"},
    "verify": {"errors", "render", "launch", "package", "sandbox"},
    "demo": {"errors", "port", "launch", "progress"},
    "doctor": {"errors", "launch"},
    "notebook": {"errors", "launch"},
    "estimate": {"errors", "bench", "launch", "scale", "tune"},
    "cli": {
        "errors",
        "textfile",
        "progress",
        "port",
        "launch",
        "rank",
        "demo",
        "bench",
        "tune",
        "scale",
        "timeline",
        "verify",
        "doctor",
        "estimate",
    },
}


def imported_names(file: Path, package: str) -> set[str]:
    """The absolute dotted names that the file imports, wherever in it the statement stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([base] if base else [])])
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def modules(folder: Path, name: str) -> list[tuple[str, Path]]:
    """(package, file) of every Python file below the folder."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        parts = (name, *file.relative_to(folder).parts[:-1])
        found.append((".".join(parts), file))
    return found


@pytest.mark.parametrize(("package", "file"), modules(DLRUN, "dlrun"), ids=lambda x: str(x).replace(str(ROOT), ""))
def test_a_folder_of_dlrun_imports_only_those_below_it(package: str, file: Path) -> None:
    parts = file.relative_to(DLRUN).parts
    folder = parts[0] if len(parts) > 1 else file.stem
    if folder in ("__init__", "__main__"):
        return
    assert folder in MAY_IMPORT, f"dlrun/{folder} is not in the plan: say in MAY_IMPORT what it may import"
    names = {n for n in imported_names(file, package) if n.split(".")[0] == "dlrun"}
    imported = {n.split(".")[1] for n in names if "." in n} & set(MAY_IMPORT)
    assert imported <= MAY_IMPORT[folder] | {folder}


def test_dlrun_never_imports_dl_comm_nor_dl_comm_dlrun() -> None:
    for package, file in modules(DLRUN, "dlrun"):
        if "programs" in file.parts:
            continue  # started as a script on the ranks, never imported: what a bench measures is dl_comm
        assert not {n for n in imported_names(file, package) if n.split(".")[0] == "dl_comm"}, file
    for package, file in modules(DL_COMM, "dl_comm"):
        assert not {n for n in imported_names(file, package) if n.split(".")[0] == "dlrun"}, file


def loaded_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after the statement."""
    code = f"{statement}\nimport sys\nprint(*sorted({{n.split('.')[0] for n in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return set(done.stdout.split())


def test_the_command_line_loads_nothing_of_weight() -> None:
    from dlrun.cli import VERBS

    for modules in (["dlrun.cli"], ["dlrun.errors", "dlrun.render", *(f"dlrun.cli.{verb}" for verb in VERBS)]):
        assert not loaded_after(f"import {', '.join(modules)}") & HEAVY


def test_the_rank_shim_needs_the_standard_library_alone() -> None:
    extra = loaded_after("import dlrun.rank") - loaded_after("import dlrun") - set(sys.stdlib_module_names)
    assert not extra


def test_dl_comm_loads_no_framework() -> None:
    assert not loaded_after("import dl_comm") & {"torch", "tensorflow", "keras", "jax", "mpi4py"}


def test_each_test_file_has_a_name_of_its_own() -> None:
    """As pytest imports them by their names alone: the second one of a name would not be run."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_what_only_some_launches_need_costs_no_other_its_time() -> None:
    code = (
        "import dlrun.launch, dlrun.launch.process, sys\nprint(*{'dlrun.sandbox.run', 'tempfile'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "\n"


# What a launch does not need until its launcher runs: each takes a millisecond or more.
LATER = {
    *("shutil", "tempfile", "difflib", "mmap", "yaml", "dataclasses", "dlrun.cli.timeline", "dlrun.launch.hosts"),
    *(f"dlrun.launch.{name}" for name in ("process", "console", "first_failure", "stall", "signals", "result")),
}
STARTS = """
import sys
from dlrun.launch import start
from dlrun.__main__ import main

def begin(*_):
    print(*sys.modules)
    sys.exit(0)

start.LauncherProcess = begin
sys.argv[:] = ["dlrun", "launch", "-n", "1", "train.py"]
main()
"""


def test_until_its_launcher_runs_a_launch_loads_nothing_that_can_come_later(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    line = [sys.executable, "-c", STARTS]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = set(done.stdout.split())
    assert "dlrun.launch.start" in loaded, done.stderr
    assert not loaded & LATER
