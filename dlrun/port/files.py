"""Ports files: one script beside itself, or a script with its local modules into a folder of their own."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import libcst as cst

from dlrun.errors import DlrunError, no_script
from dlrun.port import port
from dlrun.port.facts import Options
from dlrun.port.observing import Observed
from dlrun.port.program.script import Script
from dlrun.port.report import Part, Ported
from dlrun.render import render

_MOST_BYTES = 10_000_000  # of one file that is copied along: larger ones are data, which stay where they are
_MARK = re.compile(rb"# dlrun port ([0-9a-f]{12})[^\n]*\n\Z")  # the last line of a port: a digest of what is above it
_LONGEST_NAME = 200  # in bytes: a longer text names no file
_MOST_FILES = 300  # of one folder that is copied because its modules may be imported
_NOT_ITS_OWN = ("site-packages", "__pycache__", "node_modules", "build")
_IMPORTERS = ("importlib.import_module", "builtins.__import__", "pkgutil.iter_modules", "runpy.run_module")


def read_and_port(path: Path, options: Options | None = None, seen: Observed | None = None) -> Ported:
    """Return the port of the script at ``path`` and of the local modules that need it; nothing is written.

    Raises:
        DlrunError: as ``port``, or the file cannot be read.
    """
    try:
        if path.is_fifo():  # who waits to read it may wait for ever
            raise no_script(path)
        source = path.read_bytes()
    except FileNotFoundError:
        raise no_script(path) from None
    except OSError as error:
        raise DlrunError(f"{path}: cannot be read: {error.strerror}.", "Name the training script.") from None
    return port(source, options, str(path), path, seen)


def port_file(
    path: Path | str,
    output: Path | str | None = None,
    options: Options | None = None,
    seen: Observed | None = None,
    overwrite: bool = False,
) -> Ported:
    """Port the script at ``path`` and write the result in one act to ``output``, or beside it as ``<stem>_dist.py``.

    An earlier port that somebody edited is replaced only with ``overwrite``.

    Raises:
        DlrunError: as ``read_and_port``, the file cannot be written, is no port or is an edited one, or local modules
            need changes too.
    """
    path = Path(path)
    ported = alone(read_and_port(path, options, seen))
    target = Path(output) if output else default_output(path)
    _spare(target, path, "Name another file with -o.")
    if not overwrite:
        _spare_edits({target: ported.script_part}, {}, "Name another file with -o to compare the two")
    a_file = target.is_file() or not target.exists()
    write(target, marked(ported.script_part) if a_file else ported.script_part.encoded(), like=path)
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
    path: Path | str,
    folder: Path | str,
    options: Options | None = None,
    seen: Observed | None = None,
    overwrite: bool = False,
) -> Ported:
    """Port the script at ``path`` with its local modules into ``folder``, keeping names and package layout.

    Modules that need no change are copied as they are, with what else lies in their packages and with the files beside
    the script that it names. Nothing outside ``folder`` is touched, and nothing in it that somebody edited since an
    earlier port, unless with ``overwrite``.

    Raises:
        DlrunError: as ``read_and_port``; ``folder`` holds the script itself, another one of its name, or edited files.
    """
    path, folder = Path(path), Path(folder)
    ported = read_and_port(path, options, seen)
    home = ported.script.home
    target = folder / home.inside / script_name(path)
    sources = {target: path} | {folder / file: place for file, place in ported.script.paths.items()}
    if folder.resolve() == path.resolve().parent or any(to.resolve() == p.resolve() for to, p in sources.items()):
        raise DlrunError(f"{folder}: holds the script itself. Nothing was written.", "Name another folder.")
    _spare(target, path, "Name another folder.")
    companions = _companions(ported.script, path.absolute().parent, folder)
    parts = {target: ported.script_part} | {folder / part.file: part for part in ported.modules}
    if not overwrite:
        copies = {folder / file: source for file, source in companions.items() if folder / file not in parts}
        _spare_edits(parts, copies, "Name another folder to compare the two")
    try:
        for file, source in companions.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / file)
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DlrunError(f"{folder}: cannot be written: {error.strerror}.", "Name another folder.") from None
    write(target, marked(ported.script_part), like=path)
    for part in ported.modules:
        write(folder / part.file, marked(part), like=ported.script.paths[part.file])
    return replace(ported, path=target)


def _spare(target: Path, script: Path, hint: str) -> None:
    """Raise DlrunError where ``target`` is ``script`` itself, or another file of somebody's own making."""
    if target.resolve() == script.resolve():
        raise DlrunError(f"{target}: is the script itself. Nothing was written.", hint)
    if target.is_file() and (there := target.read_bytes()) and b"dl_comm" not in there:
        raise DlrunError(f"{target}: is there already, and is no port. Nothing was written.", hint)


def _spare_edits(parts: Mapping[Path, Part], copies: Mapping[Path, Path], hint: str) -> None:
    """Raise DlrunError where one of ``parts``, or of ``copies`` of other files, was edited since it was written."""
    edited = [to for to, part in parts.items() if to.is_file() and not up_to_date(part, to) and _is_edited(to)]
    edited += [
        to
        for to, source in copies.items()
        if to.is_file() and to.read_bytes() != source.read_bytes() and to.stat().st_mtime > source.stat().st_mtime
    ]
    if edited:
        names = ", ".join(map(str, edited))
        raise DlrunError(
            f"{names}: edited since dlrun port wrote it, or from an earlier dlrun. Nothing was written.",
            f"{hint}, or add --overwrite to replace it.",
        )


def _is_edited(target: Path) -> bool:
    """Tell whether ``target`` holds another text than was written there, as far as its last line tells."""
    text = target.read_bytes()
    mark = _MARK.search(text)
    return bool(text) and (mark is None or _digest(text[: mark.start()]) != mark[1])


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:12].encode()


def marked(part: Part) -> bytes:
    """Return the text of ``part`` as it is written: closed by a line by which later edits are recognised."""
    newline = "\r\n" if "\r\n" in part.text else "\n"
    text = part.encoded() + (b"" if part.text.endswith("\n") else newline.encode())
    line = render("port/mark.py.j2", digest=_digest(text).decode()).rstrip("\n")
    return text + (line + newline).encode()


def _companions(script: Script, beside: Path, folder: Path) -> dict[str, Path]:
    """Return the files that the script needs, by their place below ``folder``, with where they lie now.

    They are its modules, what else lies in their packages, and the files below its own folder that it names.
    """
    inside = script.home.inside
    found = dict(script.paths)
    packages = {Path(file).parent: path.parent for file, path in script.paths.items()}
    places = {at / p.name: p for at, package in packages.items() if at != Path() for p in package.iterdir()}
    places.update((inside / p.relative_to(beside), p) for p in _imported_by_chance(script, beside))
    for text in _texts(script):
        plain = text and not {"\0", "\n"} & set(text) and len(text.encode(errors="replace")) < _LONGEST_NAME
        if plain and not Path(text).is_absolute() and ".." not in text:
            places[inside / text] = beside / text
    for file, place in places.items():
        if place.is_file() and place.stat().st_size <= _MOST_BYTES and not place.name.startswith("."):
            found.setdefault(file.as_posix(), place)
    out = folder.resolve()
    return {file: found[file] for file in sorted(found) if out not in found[file].resolve().parents}


def _imported_by_chance(script: Script, beside: Path) -> Iterator[Path]:
    """Yield the files below ``beside`` that the script may import by names that nothing tells before it runs.

    Those of the package that the names begin with, ``f"nets.{args.net}"``; where they begin with none, all.
    """
    names = [
        (call.args[0].value if call.args else None) for call in script.calls if script.name_of(call.func) in _IMPORTERS
    ]
    hidden = [name for name in names if not isinstance(name, cst.SimpleString)]
    if not hidden:
        return
    tops = {_begins(name).partition(".")[0] for name in hidden}
    packages = [beside / top for top in tops if top and (beside / top).is_dir()]
    yield from beside.glob("*.py")
    for folder in packages if len(packages) == len(tops) else [p for p in beside.iterdir() if p.is_dir()]:
        files = folder.rglob("*.py") if not folder.name.startswith((".", "_")) else ()
        for file in islice(files, _MOST_FILES):
            parts = file.relative_to(beside).parts
            if not any(part.startswith(".") or part in _NOT_ITS_OWN for part in parts):
                yield file


def _begins(name: cst.CSTNode | None) -> str:
    """Return the package with which the ``name`` of a module begins: ``nets.`` of ``"nets." + net``."""
    match name:
        case cst.SimpleString():
            text = str(name.evaluated_value)
            return text.partition("{")[0].partition("%")[0]
        case cst.FormattedString(parts=[cst.FormattedStringText(value=text), *_]):
            return text
        case cst.BinaryOperation(left=left):
            return _begins(left)
        case cst.Call(func=cst.Attribute(value=value, attr=cst.Name("format"))):
            return _begins(value)
    return ""


def _texts(script: Script) -> Iterator[str]:
    for node in script.nodes:
        if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
            yield node.evaluated_value


def script_name(path: Path) -> str:
    """Return what the port of ``path`` is called in a folder of its own: as the script, or as a notebook's script."""
    return f"{path.stem}.py" if path.suffix == ".ipynb" else path.name


def default_output(path: Path) -> Path:
    """Return where the port of ``path`` is written unless the user says otherwise."""
    return path.with_name(f"{path.stem}_dist.py")


def write(target: Path, text: bytes, like: Path) -> None:
    """Write ``text`` to ``target`` in one act, with the permissions of the file ``like``."""
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(text)  # a device or a pipe is written to, and stays what it is
            return
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
    return target.exists() and target.read_bytes() in (marked(part), part.encoded())
