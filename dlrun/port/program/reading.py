"""From bytes to a Script, or to a sentence that names what stands in the way."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from dataclasses import replace
from pathlib import Path

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.package import Home, home_of
from dlrun.port.program import local, notebooks
from dlrun.port.program.script import Script

_ASYNC = re.compile(r"\basync(\s*=)(?!=)")  # an argument's name once
# Constructs that parsed once and no longer do, and what to write instead. The first match on the line wins.
_OLD = (
    (re.compile(r"\b(async)\s*="), "`async=` is a keyword since Python 3.7", "write `non_blocking=` instead"),
    (re.compile(r"^\s*print\s+[^=(\s]"), "a Python 2 print statement", "run `2to3 -w` on the file, or add parentheses"),
    (re.compile(r"^\s*print\s*$"), "a Python 2 print statement", "write `print()`"),
    (re.compile(r"^\s*exec\s+[^=(\s]"), "a Python 2 exec statement", "run `2to3 -w` on the file"),
    (re.compile(r"^\s*except\s+[\w.]+\s*,\s*\w+\s*:"), "a Python 2 except clause", "write `except Error as name:`"),
    (re.compile(r"^\s*raise\s+\w+\s*,"), "a Python 2 raise statement", "write `raise Error(message)`"),
    (re.compile(r"`[^`]+`|<>|\bur['\"]"), "Python 2 syntax", "run `2to3 -w` on the file"),
    (re.compile(r"^\s*[%!]\s*\w+"), "a notebook magic", "take the line out, or export the notebook with `nbconvert`"),
)


def read(source: str | bytes, name: str, path: Path | None = None) -> Script:
    """Return the Script in ``source``; ``name`` is what errors call it. Local modules are read from beside ``path``.

    Raises:
        DlrunError: it is no script at all, or does not parse (file, line, column, the line's text and, where known,
            the construct).
    """
    before = source
    if name.endswith(".ipynb"):
        before = source = notebooks.of_notebook(source, name)
    elif Path(name).suffix not in ("", ".py", ".pyw"):
        _parses(source, name)
    else:
        source = _readable(source)
    try:
        text = source.encode() if isinstance(source, str) else source
        home = home_of(path, text) if path is not None else Home(Path())
        found = local.modules(path, text, home) if path is not None else ()
        modules = [replace(module, source=_as_bytes(_readable(module.source))) for module in found]
        script = Script(source, name, modules, home)
        _compiles(source, name)
        old = {new.file: was.source for was, new in zip(found, modules, strict=True) if new.source is not was.source}
        for tree in (tree for tree, file in script.files.items() if tree is not script.module and file in old):
            script.texts[tree] = _decoded(old[script.files[tree]])
        if source is not before:  # what it was read from is what was there
            script.texts[script.module] = _decoded(before)
        return script
    except cst.ParserSyntaxError as error:
        raise _explained(source, name, error.raw_line, error.raw_column, error.message) from None
    except DlrunError:
        raise
    except RecursionError:
        raise DlrunError(f"{name}: nested too deeply to be read.", "Break up the longest expression.") from None
    except (UnicodeDecodeError, LookupError, SyntaxError) as error:
        raise DlrunError(f"{name}: cannot be decoded: {error}.", "Save it as UTF-8, or declare its coding.") from None
    except Exception as error:  # the parser's own limits, for instance a null byte
        raise DlrunError(f"{name}: cannot be parsed: {error}.", "Check that it is a Python 3 script.") from None


def _readable(source: str | bytes) -> str | bytes:
    """Return ``source`` with what no longer parses, or runs in notebooks alone, as it is written in a script today."""
    try:
        text = _decoded(source)
    except (UnicodeDecodeError, LookupError, SyntaxError):
        return source
    anew = notebooks.of_converted(text)
    if (spelt := _ASYNC.sub(r"non_blocking\1", anew)) != anew and not _is_python(anew) and _is_python(spelt):
        anew = spelt
    if anew == text:
        return source
    return anew if isinstance(source, str) else anew.encode(_coding(source))


def _as_bytes(source: str | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.encode()


def _decoded(source: str | bytes) -> str:
    return source if isinstance(source, str) else source.decode(_coding(source))


def _coding(source: bytes) -> str:
    return tokenize.detect_encoding(io.BytesIO(source).readline)[0]


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _parses(source: str | bytes, name: str) -> None:
    """Raise DlrunError where ``source`` is some other file: a text, a picture, a shell script."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError) as error:
        what = f"{error.msg} in line {error.lineno}" if isinstance(error, SyntaxError) else error
        raise DlrunError(f"{name}: no Python script: {what}.", "Name the training script.") from None


def _compiles(source: str | bytes, name: str) -> None:
    """Raise DlrunError where the interpreter refuses what the parser let pass: ``return`` outside a function."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        raise _sentence(name, line, column, error.msg, error.text or "", "correct the line and port again") from None


def _explained(source: str | bytes, name: str, line: int, column: int, message: str) -> DlrunError:
    text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
    lines = text.splitlines()
    try:
        ast.parse(text)
    except SyntaxError as own:  # the interpreter's own words are the better ones
        line, column, message = own.lineno or line, (own.offset or 1) - 1, own.msg
    except ValueError:
        pass
    # The parser often stops past the culprit: an old construct nearby says more than the token it stumbled on.
    for at in (line, line - 1, *range(1, len(lines) + 1)):
        if 1 <= at <= len(lines):
            for pattern, what, do in _OLD:
                found = pattern.search(lines[at - 1])
                if found and (at in (line, line - 1) or _stands_alone(pattern)):
                    return _sentence(name, at, found.start(found.lastindex or 0) + 1, f"{what}", lines[at - 1], do)
    shown = lines[line - 1] if 1 <= line <= len(lines) else ""
    return _sentence(name, line, column + 1, message.splitlines()[0], shown, "Correct the line and port again")


def _stands_alone(pattern: re.Pattern[str]) -> bool:
    return pattern in (_OLD[0][0], _OLD[1][0])


def _sentence(name: str, line: int, column: int, what: str, text: str, do: str) -> DlrunError:
    return DlrunError(
        f"{name}:{line}:{column}: {what}: nothing was written.\n    {text.strip()}", do[0].upper() + do[1:] + "."
    )
