"""Notebooks, and scripts that were made of them, as plain scripts: their code cells in order."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings

from dlrun.errors import DlrunError
from dlrun.port.program import magics

_CALLS = ("run_line_magic", "run_cell_magic", "magic", "system", "getoutput")
_RAW = re.compile(r"^[!%]\s*\w", re.MULTILINE)  # as Colab downloads its notebooks
_COLAB = re.compile(r"^(from google\.colab\b|import google\.colab\b|drive\.mount\(|files\.(upload|download)\()")


def of_notebook(source: str | bytes, name: str) -> str:
    """Return the script in the notebook ``source``: its code cells in order, magics and shell lines as Python.

    Raises:
        DlrunError: it is no notebook, or one in another language.
    """
    try:
        book = json.loads(source)
        cells = book["cells"] if "cells" in book else [c for sheet in book["worksheets"] for c in sheet["cells"]]
        language = book.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        texts = [_text(c) for c in cells if c.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DlrunError(f"{name}: no notebook: {error!r}.", "Name the training script, or its notebook.") from None
    if language.lower() not in ("python", "python3"):
        raise DlrunError(f"{name}: a notebook in {language}, not in Python.", "Name a Python notebook.")
    if not any(text.strip() for text in texts):
        raise DlrunError(f"{name}: a notebook without code.", "Name the training script, or its notebook.")
    names = _names("\n".join(texts))
    parts = [_cell(text, names).strip("\n") for text in texts]
    return _with_heads("\n\n".join(part for part in parts if part.strip()) + "\n")


def of_converted(text: str) -> str:
    """Return the script ``text``, made of a notebook, with the lines that ask for its shell as Python; else itself."""
    raw = bool(_RAW.search(text))
    if "get_ipython" not in text and not raw:
        return text
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, RecursionError):
        return _with_heads(_cell(text, _names(text)) + "\n") if raw else text
    lines, names = text.splitlines(), _names(text)
    found = [(node, said) for node in ast.walk(tree) if isinstance(node, ast.stmt) and (said := _asked(node, names))]
    for node, said in sorted(found, key=lambda f: -f[0].lineno):
        if len(said) == 1 and not lines[node.lineno - 1][: node.col_offset].strip():
            lines[node.lineno - 1 : node.end_lineno] = _indented(said[0], " " * node.col_offset)
    return _with_heads("\n".join(lines) + "\n") if found else _with_heads(text)


def left_out(text: str) -> list[tuple[int, str]]:
    """Return the lines of a script made of a notebook that a person has to look at: their numbers, and what was there.

    They are comments, each in a line of its own or behind what stands for it.
    """
    at = [(number, line.partition(magics.LEFT_OUT)) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, found[2].strip()) for number, found in at if found[1]]


def _text(cell: dict[str, object]) -> str:
    source = cell.get("source", cell.get("input", ""))
    return "".join(source) if isinstance(source, list) else str(source)


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _names(text: str) -> set[str]:
    """Return the names that ``text`` binds, as far as its lines tell."""
    return set(re.findall(r"^\s*(?:for\s+|import\s+|def\s+)?(\w+)\s*(?:=(?!=)|\bin\b|$|\()", text, re.MULTILINE)) | set(
        re.findall(r"\bas\s+(\w+)", text)
    )


def _cell(text: str, names: set[str]) -> str:
    """Return one code cell as Python."""
    text = text.lstrip("\n")
    while (body := magics.cell(text, names)) is not None:
        text = body.lstrip("\n")
    out: list[str] = []
    waiting = iter(text.splitlines())
    for line in waiting:
        bare = line.strip()
        while bare.endswith("\\") and bare[:1] in ("%", "!"):  # goes on in the next line
            bare = f"{bare[:-1].rstrip()} {next(waiting, '').strip()}"
        if not _may_be_one(bare) or _is_open(out):
            out.append(line)
            continue
        said = f"{magics.LEFT_OUT}{bare}" if _COLAB.search(bare) else magics.line(bare, names)
        out.extend([line] if said is None else _indented(said, line[: len(line) - len(line.lstrip())]))
    return "\n".join(out)


def _may_be_one(bare: str) -> bool:
    return bool(re.match(r"^([%!?]|[\w.]+\?|[\w., ]+=\s*[%!])", bare) or _COLAB.search(bare))


def _indented(said: str, indent: str) -> list[str]:
    """Return the lines of ``said`` in a block; one that would be empty is kept by ``pass``."""
    if not indent:
        return said.splitlines()
    if not said.strip() or said.startswith("#"):
        said = f"pass  {said}".rstrip()
    return [indent + line if line else line for line in said.splitlines()]


def _is_open(lines: list[str]) -> bool:
    """Tell whether what comes after ``lines`` still belongs to a bracket or a text of theirs."""
    if lines and lines[-1].endswith("\\"):
        return True
    try:
        for _ in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            pass
    except tokenize.TokenError:
        return True
    except (IndentationError, SyntaxError):
        return False
    return False


def _asked(node: ast.stmt, names: set[str]) -> list[str]:
    """Return the Python of a statement that asks the notebook's shell for something, as a list; [] for any other."""
    value = getattr(node, "value", None)
    match value:
        case ast.Call(func=ast.Attribute(attr=how, value=ast.Call(func=ast.Name("get_ipython"))), args=args) if (
            how in _CALLS and all(isinstance(a, ast.Constant) for a in args)
        ):
            words = [str(a.value) for a in args if isinstance(a, ast.Constant)]
        case _:
            return []
    if isinstance(node, ast.Assign):
        target = ", ".join(map(ast.unparse, node.targets))
        said = magics.line(f"{target} = {'!' if how == 'getoutput' else '%'}{' '.join(words)}", names)
    elif how == "run_cell_magic" and len(words) == 3:
        said = _cell(f"%%{words[0]} {words[1]}\n{words[2]}", names)
    elif isinstance(node, ast.Expr):
        said = magics.line(f"{'!' if how in ('system', 'getoutput') else '%'}{' '.join(words)}", names)
    else:
        return []
    return [said or ""]


def _with_heads(text: str) -> str:
    """Return ``text`` with what a notebook has without asking: imports of commands, ``display``, its shell."""
    text = text.replace("tqdm.notebook", "tqdm.auto")
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, RecursionError):
        return text
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update((a.asname or a.name).partition(".")[0] for a in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
    heads = [f"import {name}" for name in ("os", "subprocess") if name in used - bound]
    lines = text.splitlines(keepends=True)
    at = max((n.end_lineno or 0 for n in tree.body if _is_head(n, tree)), default=0)
    at = at or next((i for i, line in enumerate(lines) if not line.startswith("#")), 0)  # below the coding
    below = []
    if "display" in used - bound:
        below.append("def display(*values):  # of the notebook\n    print(*values)")
    if "get_ipython" in used - bound:
        below.append("get_ipython = lambda: None  # no notebook")
    if not heads and not below:
        return text
    first = [f"{line}\n" for line in heads]
    last = max((n.end_lineno or 0 for n in _first_imports(tree)), default=at)
    return "".join(
        [
            *lines[:at],
            *first,
            *lines[at:last],
            *(["\n", *(f"{line}\n" for line in below)] if below else []),
            *lines[last:],
        ]
    )


def _is_head(node: ast.stmt, tree: ast.Module) -> bool:
    """Tell whether ``node`` has to stay first: the docstring, imports of the future."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return (text and node is tree.body[0]) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _first_imports(tree: ast.Module) -> list[ast.stmt]:
    """Return the imports with which a script begins, and its docstring."""
    found: list[ast.stmt] = []
    for node in tree.body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_head(node, tree):
            break
        found.append(node)
    return found
