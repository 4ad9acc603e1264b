"""Part of step "output": what the other ranks read after rank 0 has written it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.kinds_tensorflow import plain
from dlrun.port.insert import expression
from dlrun.port.passes import downloads
from dlrun.port.passes.writes import called, saves_model, writes

_READS = re.compile(
    r"^(os\.(stat|path\.(exists|isfile|getsize))|numpy\.(load|loadtxt|genfromtxt)|pandas\.read_\w+|(builtins|io)\.open|"
    r"tensorflow\.(io\.read_file|data\.(experimental\.)?(TextLineDataset|TFRecordDataset|CsvDataset|make_csv_dataset)))$"
)
_WHOLE = ("os.listdir", "os.scandir")  # of a folder
_LISTS = (*_WHOLE, "glob.glob", "glob.iglob", "tensorflow.data.Dataset.list_files",
          *(f"tensorflow.{module}.{name}" for module in ("io.gfile", "gfile") for name in ("glob", "listdir", "Glob",
                                                                                         "ListDirectory")))  # fmt: skip


def back(facts: ScriptFacts) -> Iterator[Edit]:
    """Yield what makes the other ranks wait where they read, by the same words, what rank 0 has written before.

    Before:
        np.savetxt(path, losses)
        losses = np.loadtxt(path)

    After:
        dl.rank0(np.savetxt)(path, losses)
        losses = dl.rank0_first(np.loadtxt)(path)
    """
    written: list[tuple[cst.Call, set[tuple[cst.CSTNode | None, str]]]] = []
    read: list[tuple[cst.Call, set[tuple[cst.CSTNode | None, str]]]] = []
    for call in downloads.others(facts):
        name = called(facts, call)
        if name == "torch.save" or writes(facts, call, name) or saves_model(facts, call, name):
            folders = {word for arg in call.args for word in _folder(facts, call, arg.value)}
            written.append((call, folders.union(*(_words(facts, call, arg.value) for arg in call.args))))
        elif (_READS.search(plain(name)) or name == "h5py.File") and call.args and not downloads.is_apart(facts, call):
            read.append((call, _words(facts, call, call.args[0].value)))
        elif plain(name) in _LISTS and call.args and not downloads.is_apart(facts, call):
            read.append((call, _folder(facts, call, call.args[0].value)))
    tree_of, order = facts.script.tree_of, facts.script.order
    for call, mine in read:
        before = (words for one, words in written if tree_of(one) is not tree_of(call) or order[one] < order[call])
        if any(not words.isdisjoint(mine) for words in before):
            yield Edit(call.func, "rank 0 first: it has written what all read",
                       lambda f: expression("torch/rank0_first", {"call": f}, dl=facts.alias))  # fmt: skip


def _words(facts: ScriptFacts, call: cst.Call, path: cst.BaseExpression) -> set[tuple[cst.CSTNode | None, str]]:
    """Return what tells ``path`` from others: its words, in their function, what makes it, and the texts that do."""
    made = [o.node for o in facts.flow.origins(path)]
    parts = [e.value for m in made if isinstance(m, (cst.List, cst.Tuple)) for e in m.elements]  # of several files
    made += [o.node for part in parts for o in facts.flow.origins(part)]
    options = [m for m in made if isinstance(m, cst.Subscript) and facts.script.code(m.slice[0])[:1] in ("'", '"')]
    asks = called(facts, call).startswith("os.")  # which any rank may, of a path that others have
    ends = [text for m in made for text in [_file_name(facts, m)] if text and not asks]
    return {(facts.script.function_of(call), facts.script.code(path)), *((m, "") for m in made if not asks),
            *((None, text) for text in ends),
            *((None, facts.script.code(m)) for m in options),  # config["file"]
            *((None, str(t.evaluated_value)) for t in made if isinstance(t, cst.SimpleString))}  # fmt: skip


def _file_name(facts: ScriptFacts, path: cst.CSTNode) -> str:
    """Return the name of the file that ``path`` ends with: ``"a.json"`` of ``os.path.join(folder, "a.json")``."""
    match path:
        case cst.Call(func=func, args=[*_, cst.Arg(value=last)]) if facts.script.name_of(func) == "os.path.join":
            return _file_name(facts, last)
        case cst.BinaryOperation(operator=cst.Add() | cst.Divide(), right=last):
            return _file_name(facts, last)
        case cst.BinaryOperation(operator=cst.Modulo(), left=cst.SimpleString() as text):
            return _file_name(facts, text)
        case cst.FormattedString(parts=[*_, cst.FormattedStringText(value=text)]):
            found = text.rpartition("/")
        case cst.SimpleString():
            found = str(path.evaluated_value).rpartition("/")
        case _:
            return ""
    return found[2] if re.fullmatch(r"\w[\w-]{2,}\.\w+", found[2]) else ""


def _folder(facts: ScriptFacts, call: cst.Call, path: cst.BaseExpression) -> set[tuple[cst.CSTNode | None, str]]:
    """Return what tells the folder of ``path``, or that which ``call`` lists, from others: of all that it may be."""
    found = _spelt(facts, call, path)
    if plain(facts.script.name_of(call.func)) in _LISTS:
        found.add(_scoped(facts, path))
    for made in (o.node for o in facts.flow.origins(path)):
        found |= _spelt(facts, call, made) if isinstance(made, cst.BaseExpression) else set()
    return found


def _scoped(facts: ScriptFacts, folder: cst.BaseExpression) -> tuple[cst.CSTNode | None, str]:
    """Return what tells ``folder`` from others: its words, in the function that binds its name."""
    scope = facts.script.scopes[folder].lookup(folder.value)[1] if isinstance(folder, cst.Name) else None
    home = scope.node if scope is not None else facts.script.function_of(folder)
    return home, f"{facts.script.code(folder)}/"


def _spelt(facts: ScriptFacts, call: cst.Call, path: cst.BaseExpression) -> set[tuple[cst.CSTNode | None, str]]:
    """Return what tells the folder of a path from others, as it is spelt.

    As ``"data/*.npy"``, ``f"{folder}/{i}.npy"``, ``folder + "/%d.npy" % i``, or ``os.path.join(folder, "*.npy")``.
    """
    match path:
        case cst.SimpleString():
            text = str(path.evaluated_value)
            whole = facts.script.name_of(call.func) in _WHOLE
            folder = text.rstrip("/") if whole else text.rpartition("/")[0]
            return {(None, f"{folder}/")} if folder else set()
        case cst.FormattedString(parts=[cst.FormattedStringText(value=text), *_]) if "/" in text:
            return {(None, f"{text.rpartition('/')[0]}/")}
        case cst.FormattedString(parts=[cst.FormattedStringExpression(expression=at), cst.FormattedStringText() as text,
                                        *_]) if text.value.startswith("/"):  # fmt: skip
            return {_scoped(facts, at)}
        case cst.BinaryOperation(left=text, operator=cst.Modulo()):
            return _spelt(facts, call, text)
        case cst.BinaryOperation(left=at, operator=cst.Add(), right=end):
            begun = end.left if isinstance(end, cst.BinaryOperation) else end
            begins = isinstance(begun, cst.SimpleString) and str(begun.evaluated_value).startswith("/")
            return {_scoped(facts, at)} if begins else set()
        case cst.Call(func=func, args=[cst.Arg(value=at), *_]) if facts.script.name_of(func) == "os.path.join":
            return {_scoped(facts, at)}
    return set()
