"""Ports files: one script beside itself, or a script with its local modules into a folder of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port import port
from dlrun.port.facts import Options
from dlrun.port.observing import Observed
from dlrun.port.report import Part, Ported
from dlrun.port.script import Script

_MOST_BYTES = 10_000_000  # of one file that is copied along: larger ones are data, which stay where they are
_IMPORTERS = ("importlib.import_module", "builtins.__import__", "pkgutil.iter_modules", "runpy.run_module")


def read_and_port(path: Path, options: Options | None = None, seen: Observed | None = None) -> Ported:
    """Return the port of the script at ``path`` and of the local modules that need it; nothing is written.

    Raises:
        DlrunError: as ``port``, or the file cannot be read.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise DlrunError(f"{path}: cannot be read: {error.strerror}.", "Name the training script.") from None
    return port(source, options, str(path), path, seen)


def port_file(
    path: Path | str,
    output: Path | str | None = None,
    options: Options | None = None,
    seen: Observed | None = None,
) -> Ported:
    """Port the script at ``path`` and write the result in one act to ``output``, or beside it as ``<stem>_dist.py``.

    Raises:
        DlrunError: as ``read_and_port``, the file cannot be written, or local modules need changes too.
    """
    path = Path(path)
    ported = alone(read_and_port(path, options, seen))
    target = Path(output) if output else default_output(path)
    write(target, ported.script_part.encoded(), like=path)
    return replace(ported, path=target)


def alone(ported: Ported) -> Ported:
    """Return ``ported``; raises DlrunError where its local modules need changes too, and so a folder."""
    if not ported.modules:
        return ported
    path = Path(ported.name)
    needs = []
    for module in ported.modules:
        edits = [e for e in ported.edits if ported.file_of(e) == module.file]
        steps = sorted({e.step for e in edits if e.step != "start"} or {"start"})
        needs.append(f"  {module.file}: {len(edits)} edits ({', '.join(steps)})")
    who = "1 local module" if len(needs) == 1 else f"{len(needs)} local modules"
    raise DlrunError(
        f"{path}: {who} that it imports must change too. Nothing was written.\n" + "\n".join(needs),
        f"dlrun port {path} --out-dir {path.stem}_dist writes the script and its modules there.",
    )


def port_tree(
    path: Path | str, folder: Path | str, options: Options | None = None, seen: Observed | None = None
) -> Ported:
    """Port the script at ``path`` with its local modules into ``folder``, keeping names and package layout.

    Modules that need no change are copied as they are, with what else lies in their packages and with the files beside
    the script that it names. Nothing outside ``folder`` is touched.

    Raises:
        DlrunError: as ``read_and_port``; ``folder`` holds the script itself, or another one of its name.
    """
    path, folder = Path(path), Path(folder)
    ported = read_and_port(path, options, seen)
    target = folder / path.name
    if folder.resolve() == path.resolve().parent:
        raise DlrunError(f"{folder}: holds the script itself. Nothing was written.", "Name another folder.")
    if target.exists() and b"dl_comm" not in target.read_bytes():
        raise DlrunError(f"{target}: is there already, and is no port. Nothing was written.", "Name another folder.")
    try:
        for file in _companions(ported.script, path.parent, folder):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path.parent / file, folder / file)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DlrunError(f"{folder}: cannot be written: {error.strerror}.", "Name another folder.") from None
    for part in (replace(ported.script_part, file=path.name), *ported.modules):
        write(folder / part.file, part.encoded(), like=path.parent / part.file)
    return replace(ported, path=target)


def _companions(script: Script, home: Path, folder: Path) -> list[str]:
    """Return the files below ``home`` that the script needs beside it, as relative paths in a fixed order."""
    found = {file for tree, file in script.files.items() if tree is not script.module}
    packages = {Path(file).parent for file in found} - {Path()}
    places = [p for package in packages for p in (home / package).iterdir()]
    if any(script.name_of(call.func) in _IMPORTERS for call in script.calls):
        places.extend(home.glob("*.py"))
    for text in _texts(script):
        place = home / text
        if "\0" not in text and text and not Path(text).is_absolute() and ".." not in text and len(text) < 200:
            places.append(place)
    for place in places:
        if place.is_file() and place.stat().st_size <= _MOST_BYTES and not place.name.startswith("."):
            found.add(place.relative_to(home).as_posix())
    inside = folder.resolve()
    return sorted(f for f in found if inside not in (home / f).resolve().parents)


def _texts(script: Script) -> Iterator[str]:
    for node in script.nodes:
        if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
            yield node.evaluated_value


def default_output(path: Path) -> Path:
    """Return where the port of ``path`` is written unless the user says otherwise."""
    return path.with_name(f"{path.stem}_dist.py")


def write(target: Path, text: bytes, like: Path) -> None:
    """Write ``text`` to ``target`` in one act, with the permissions of the file ``like``."""
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            Path(temporary).chmod(like.stat().st_mode & 0o777)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DlrunError(f"{target}: cannot be written: {error.strerror}.", "Choose another place with -o.") from None


def up_to_date(part: Part, target: Path) -> bool:
    """Tell whether ``target`` holds what ``part`` came out as."""
    return target.exists() and target.read_bytes() == part.encoded()
