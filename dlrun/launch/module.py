"""Whether ``-m NAME`` names something that runs: looked for where the ranks look, and nothing is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from dlrun.errors import DlrunError


def check(name: str, cwd: str, python_path: str = "") -> None:
    """Raise :class:`DlrunError` where ``python -m name``, in the folder ``cwd``, would find nothing to run.

    ``python_path``: folders that the ranks look in besides. What a package makes up as it is imported is believed.
    """
    folder = Path(cwd).absolute()
    if not all(part.isidentifier() for part in name.split(".")):
        raise DlrunError(f"-m {name}: no module has such a name", _as_a_file(name, folder))
    top, *parts = name.split(".")
    spec = _top(top, [str(folder), *python_path.split(":"), *sys.path])
    if spec is None:
        raise DlrunError(f"-m {name}: there is no module {top}", _near(top, folder))
    found = top
    for part in (*parts, "__main__"):
        if part == "__main__" and not _is_package(spec):
            return
        inner = PathFinder.find_spec(part, _folders(spec))
        if inner is None:
            if _makes_up(spec):
                return
            raise DlrunError(*_lacking(name, found, spec, part, folder))
        spec, found = inner, f"{found}.{part}"


def _lacking(name: str, found: str, spec: ModuleSpec, part: str, folder: Path) -> tuple[str, str]:
    if part == "__main__":
        return f"-m {name}: the package {found} has no __main__.py", "name the module in it that is to run"
    if not _is_package(spec):
        return f"-m {name}: {found} is a module, and no package with a module {part} in it", _as_a_file(name, folder)
    return f"-m {name}: the package {found} has no module {part}", f"looked in {', '.join(_folders(spec))}"


def _folders(spec: ModuleSpec) -> list[str]:
    return list(spec.submodule_search_locations or [])


def _top(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Return where a module outside of packages is: of an editable installation, say, a finder of its own knows."""
    if found := PathFinder.find_spec(name, list(folders)):
        return found
    specs = (finder.find_spec(name, None) for finder in sys.meta_path)
    return next((spec for spec in specs if spec), None)


def _is_package(spec: ModuleSpec) -> bool:
    return spec.submodule_search_locations is not None


def _makes_up(spec: ModuleSpec) -> bool:
    """Return whether a package may find modules elsewhere than in its folder, or cannot be read."""
    if not _is_package(spec) or not spec.origin or not spec.origin.endswith(".py"):
        return _is_package(spec) and bool(spec.origin)
    try:
        text = Path(spec.origin).read_bytes()
    except OSError:
        return True
    return b"__path__" in text or b"sys.modules" in text


def _as_a_file(name: str, folder: Path) -> str:
    is_file = (folder / name).is_file()
    return "leave out -m: this is a file" if is_file else "write it as import does: package.module"


def _near(top: str, folder: Path) -> str:
    import difflib

    names = [p.stem for p in folder.glob("*.py")] + [p.parent.name for p in folder.glob("*/__init__.py")]
    close = difflib.get_close_matches(top, names, n=1)
    return f"did you mean {close[0]}?" if close else f"looked in {folder} and where {sys.executable} looks"
