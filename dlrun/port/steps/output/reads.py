"""Part of step "output": what the other ranks read after rank 0 has written it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.texts import spelt
from dlrun.port.insert import expression
from dlrun.port.steps.output import downloads, unseen_files
from dlrun.port.steps.output.writes import called, is_path, saves_model, stays, writes
from dlrun.port.steps.shard.order import is_listed_alike

_READS = re.compile(
    r"^(os\.(stat|path\.(exists|isfile|getsize))|numpy\.(load|loadtxt|genfromtxt)|pandas\.read_\w+|(builtins|io)\.open|"
    r"(matplotlib\.(pyplot|image)|cv2|imageio(\.v[23])?|skimage\.io|scipy\.misc|tifffile)\.v?imread|PIL\.Image\.open|"
    r"(keras|tensorflow\.keras)\.(utils|preprocessing\.image)\.load_img|joblib\.load|scipy\.sparse\.load_npz|"
    r"scipy\.io\.(loadmat|wavfile\.read)|soundfile\.read|torchaudio\.load|torchvision\.io\.read_image|"
    r"tensorflow\.(io\.read_file|data\.(experimental\.)?(TextLineDataset|TFRecordDataset|CsvDataset|make_csv_dataset)))$"
)
_ASKS = ("os.path.exists", "os.path.isfile")  # what fails of no file
_LOADS_IT = re.compile(r"^(load|read)[A-Z]\w*$")
_READING_METHODS = ("read_text", "read_bytes")
_WRITING_METHODS = ("write_text", "write_bytes")
_LISTING_METHODS = ("iterdir", "glob", "rglob")
_TELLS = re.compile(r"\w{3,}")  # a text from others
_SPELLS = re.compile(
    r"^(pathlib\.(Pure)?(Posix)?Path|builtins\.str|os\.(fspath|path\.(abspath|expanduser|realpath|normpath)))$"
)
_Words = set[tuple[cst.CSTNode | None, str]]
_WHOLE = ("os.listdir", "os.scandir")  # of a folder
_LISTS = (
    *_WHOLE,
    "glob.glob",
    "glob.iglob",
    "tensorflow.data.Dataset.list_files",
    *(
        f"tensorflow.{module}.{name}"
        for module in ("io.gfile", "gfile")
        for name in ("glob", "listdir", "Glob", "ListDirectory")
    ),
)


def back(facts: ScriptFacts) -> Iterator[Edit]:
    """Yield what makes the other ranks wait where they read, by the same words, what rank 0 has written before.

    Before:
        np.savetxt(path, losses)
        losses = np.loadtxt(path)

    After:
        dl.rank0(np.savetxt)(path, losses)
        losses = dl.rank0_first(np.loadtxt)(path)
    """
    written: list[tuple[cst.Call, _Words]] = []
    read: list[tuple[cst.Call, _Words]] = []
    for call in downloads.others(facts):
        name = called(facts, call)
        saves = writes(facts, call, name) or saves_model(facts, call, name) or unseen_files.saves(facts, call, name)
        if name == "torch.save" or saves:
            paths = [arg.value for arg in call.args]
            paths += [path] if (path := _of_path(facts, call)) is not None else []
            folders = {word for path in paths for word in _folder(facts, call, path)}
            held = _held(facts, call) if not call.args else set()
            held |= {(call, "")} if stays(facts, call) else set()
            written.append((call, folders.union(held, *(_words(facts, call, path) for path in paths))))
        elif (mine := _read_by(facts, call, name)) and not downloads.is_apart(facts, call, _of_batches(facts, name)):
            read.append((call, mine))
    tree_of, order = facts.script.tree_of, facts.script.order
    for call, mine in read:
        last = _last_run(facts, call)
        before = (words for one, words in written if tree_of(one) is not tree_of(call) or order[one] < last)
        if any(not words.isdisjoint(mine) for words in before) and not is_listed_alike(facts, call):
            yield Edit(
                call.func,
                "rank 0 first: it has written what all read",
                lambda f: expression("torch/rank0_first", {"call": f}, dl=facts.alias),
            )


def _read_by(facts: ScriptFacts, call: cst.Call, name: str) -> _Words:
    """Return what tells the file that ``call``, of what is called ``name``, reads, or the folder; nothing of others."""
    if (path := _of_path(facts, call)) is not None:
        lists = call.func.attr.value in _LISTING_METHODS  # type: ignore[attr-defined]
        return _folder(facts, call, path) if lists else _words(facts, call, path)
    if not call.args:
        return set()
    if _READS.search(plain(name)) or name == "h5py.File":
        return _words(facts, call, call.args[0].value)
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    others = bool(_LOADS_IT.search(method)) and not facts.flow.targets(call)  # coco.loadRes("results.json")
    if others or (facts.framework == "torch" and name != "torch.load" and unseen_files.may_read(facts, call, name)):
        return {w for arg in call.args[:2] for w in _words(facts, call, arg.value)}
    return _folder(facts, call, call.args[0].value) if plain(name) in _LISTS else set()


def _of_batches(facts: ScriptFacts, name: str) -> tuple[cst.CSTNode, ...] | None:
    """Return the loops in which no rank waits to read: those through batches; to ask for a file, all that train."""
    return facts.innermost if isinstance(facts, Facts) and name not in (*_ASKS, *_WHOLE) else None


def _of_path(facts: ScriptFacts, call: cst.Call) -> cst.BaseExpression | None:
    """Return the path whose method ``call`` is, if that reads or writes a file: ``(folder / "a.txt").read_text()``."""
    if not isinstance(call.func, cst.Attribute) or facts.flow.targets(call):
        return None
    method, owner = call.func.attr.value, call.func.value
    sure = method in (*_READING_METHODS, *_WRITING_METHODS)
    return owner if sure or (method in ("open", *_LISTING_METHODS) and is_path(facts, owner)) else None


def _last_run(facts: ScriptFacts, call: cst.Call, depth: int = 3) -> int:
    """Return the place in the source from which ``call`` is run last: its own, or that of a call of its function.

    In a loop it is the loop's end: it may be run once more.
    """
    home = facts.script.function_of(call)
    callers = facts.flow.callers(home) if isinstance(home, cst.FunctionDef) and depth else []
    same = [c for c in callers if facts.script.tree_of(c) is facts.script.tree_of(call)]
    loops = (up for up in facts.script.above(call) if isinstance(up, (cst.For, cst.While)))
    ends = [facts.script.order[up.body.body[-1]] for up in loops if facts.script.inside(call, up.body)]
    return max([facts.script.order[call], *ends, *(_last_run(facts, c, depth - 1) for c in same if c is not call)])


def _words(facts: ScriptFacts, call: cst.Call, path: cst.BaseExpression) -> _Words:
    """Return what tells ``path`` from others: its words, in their function, what makes it, and the texts that do."""
    made = _made(facts, path)
    if isinstance(path, cst.Attribute) and path.attr.value == "name":  # of a temporary file
        made += [o.node for o in facts.flow.origins(path.value)]
    parts = [e.value for m in made if isinstance(m, (cst.List, cst.Tuple)) for e in m.elements]  # of several files
    made += [o.node for part in parts for o in facts.flow.origins(part)]
    options = [m for m in made if isinstance(m, cst.Subscript) and facts.script.code(m.slice[0])[:1] in ("'", '"')]
    asks = called(facts, call) in _ASKS  # which any rank may, of a path that others have
    ends = [text for m in made for text in (_file_name(facts, m), spelt(facts.flow, m)) if text and not asks]
    own = facts.script.class_of(call) if _head(path) == "self" else None
    return {
        (own or facts.script.function_of(call), facts.script.code(path)),
        *((m, "") for m in made if not asks),
        *((None, text) for text in ends if _TELLS.search(text)),
        *((None, facts.script.code(m)) for m in options),  # config["file"]
        *((None, str(t.evaluated_value)) for t in made if isinstance(t, cst.SimpleString)),
    }


def _made(facts: ScriptFacts, path: cst.BaseExpression, deep: int = 3) -> list[cst.CSTNode]:
    """Return what ``path`` may be made of: ``folder / "a.txt"`` of ``Path(path)``, where that is what path is."""
    found: list[cst.CSTNode] = []
    for made in (o.node for o in facts.flow.origins(path)):
        inner = _same_path(facts, made) if deep else None
        found += [made] if inner is None else _made(facts, inner, deep - 1)
    return found


def _same_path(facts: ScriptFacts, made: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the path that ``made`` spells otherwise: that of ``str(path)``, ``Path(path)`` or ``path.resolve()``."""
    if not isinstance(made, cst.Call):
        return None
    if len(made.args) == 1 and _SPELLS.search(facts.script.name_of(made.func)):
        return made.args[0].value
    again = isinstance(made.func, cst.Attribute) and made.func.attr.value in ("resolve", "absolute", "expanduser")
    return made.func.value if again and not made.args else None  # type: ignore[attr-defined]


def _head(path: cst.CSTNode) -> str:
    """Return the name with which ``path`` begins: ``self`` of ``self.root / "a.txt"``."""
    while isinstance(path, (cst.BinaryOperation, cst.Attribute)):
        path = path.left if isinstance(path, cst.BinaryOperation) else path.value
    return path.value if isinstance(path, cst.Name) else ""


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


def _folder(facts: ScriptFacts, call: cst.Call, path: cst.BaseExpression) -> _Words:
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


def _held(facts: ScriptFacts, call: cst.Call) -> _Words:
    """Return what tells the folders that the object which writes was made with: ``CheckpointManager(ckpt, folder)``."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    made = [o.node for o in facts.flow.origins(owner)] if owner is not None else []
    given = [arg.value for m in made if isinstance(m, cst.Call) for arg in m.args]
    texts = [o.node for path in given for o in facts.flow.origins(path) if isinstance(o.node, cst.SimpleString)]
    return {
        *(_scoped(facts, path) for path in given),
        *((None, f"{str(t.evaluated_value).rstrip('/')}/") for t in texts),
    }


def _spelt(facts: ScriptFacts, call: cst.Call, path: cst.BaseExpression) -> _Words:
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
        case cst.FormattedString(
            parts=[cst.FormattedStringExpression(expression=at), cst.FormattedStringText() as text, *_]
        ) if text.value.startswith("/"):
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
