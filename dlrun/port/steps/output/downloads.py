"""Part of step "output": a file that the script fetches, or makes, where it is missing, or sorts out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import argument, walk
from dlrun.port.steps.output import commands, databases, unseen_files
from dlrun.port.steps.output.opens import to_write
from dlrun.port.steps.output.stamps import OF_WORKERS, once

_LOOKS = re.compile(r"^(os\.path\.(exists|isfile|isdir)|tensorflow\.(io\.)?gfile\.(exists|isdir|Exists|IsDirectory))$")
_LOOKING_METHODS = ("exists", "is_file", "is_dir")
_FETCHES = re.compile(
    r"^((six\.moves\.)?urllib\.(request\.)?(urlretrieve|urlopen)|requests\.get|wget\.download|gdown\.\w+|kagglehub\.\w+|"
    r"huggingface_hub\.\w*download)$"
)
_FETCHERS = re.compile(r"\b(wget|curl)\b")  # commands
_MAKES = re.compile(
    r"^(numpy\.(save|savez|savez_compressed|savetxt)|scipy\.sparse\.save_npz|(pickle|json|joblib)\.dump)$"
)
_TAKES = re.compile(r"^(numpy\.(load|loadtxt)|scipy\.sparse\.load_npz|(pickle|json|joblib)\.load)$")
_TABLES = ("to_csv", "to_pickle", "to_parquet", "to_feather", "to_hdf", "tofile")
_ARRAYS = {"numpy.memmap": 2, "numpy.lib.format.open_memmap": 1, "zarr.open": 1}  # each with the place of its mode
_CLEARS = re.compile(r"^(os\.(remove|unlink|rename|replace)|shutil\.move)$")
_LISTS = re.compile(r"^(os\.(listdir|scandir|walk)|glob\.i?glob)$|\.(glob|rglob|iterdir)$")
_FOLDERS = re.compile(r"(^|\.)(\w+_dataset_from_directory|ImageFolder|DatasetFolder|flow_from_directory)$")
_LOCKS = re.compile(
    r"^(filelock\.(\w+\.)*\w*FileLock|fasteners\.InterProcess\w*Lock|portalocker\.(\w*Lock|utils\.\w*Lock))$"
)
_LOCKING = re.compile(r"^(os\.O_EXCL|fcntl\.(flock|lockf)|msvcrt\.locking|portalocker\.lock)$")
_DRAWS = re.compile(
    r"^(torch\.(rand|normal|bernoulli|multinomial)\w*|numpy\.random\.(?!RandomState|default_rng)\w+|random\.\w+)$"
)
_FILES = re.compile(r"^torch\.(load|save)$")
# What may make ranks wait for each other: not to be done in turns.
_TOGETHER = re.compile(r"\.(fit|fit_generator|train_on_batch|backward|step|run|minimize|compile)$")


_WHY: dict[type[cst.CSTNode], str] = {cst.For: "sorts files out", cst.With: "takes the lock first"}

_Turn = cst.If | cst.Try | cst.For | cst.With | cst.FunctionDef


def both(facts: ScriptFacts) -> Iterator[Edit]:
    """Let rank 0 look and fetch before the others look: they would find half a file, or fetch it once more.

    Before:
        import os, urllib.request
        if not os.path.exists("corpus.txt"):
            urllib.request.urlretrieve(URL, "corpus.txt")

    After:
        import os, urllib.request
        with dl.rank0_first():  # the others come when it is done, and find what it leaves
            if not os.path.exists("corpus.txt"):
                urllib.request.urlretrieve(URL, "corpus.txt")
    """
    script = facts.script
    for node in turns(facts):
        if not isinstance(node, cst.FunctionDef):
            why = _WHY.get(type(node), "looks first, and fetches what is missing")
            yield Edit(node, f"rank 0 {why}", lambda n: _in_turn(n, facts.alias))
            continue
        for call in facts.flow.callers(node):
            if not any(script.inside(call, n) for n in turns(facts)):
                yield Edit(
                    call.func,
                    "rank 0 looks first, and fetches what is missing",
                    lambda f: expression("torch/rank0_first", {"call": f}, dl=facts.alias),
                )


def turns(facts: ScriptFacts) -> list[_Turn]:
    """Return the conditions, attempts, and functions that return early, that fetch or make files which are missing.

    Also the loops that remove or move the files of a folder, and what is done under a lock. None lies in another one;
    what trains, or would be in a loop that does, or in a worker process, is none of them.
    """
    script, found = facts.script, list[_Turn]()
    for node in script.nodes:
        if isinstance(node, cst.For):
            acts = sorts_out(facts, node)
        else:
            acts = isinstance(node, cst.With) and _locks(facts, node) and not _works_together(facts, node)
        if isinstance(node, (cst.For, cst.With)) and acts and not any(script.inside(node, o) for o in found):
            found.append(node)
        if not isinstance(node, (cst.If, cst.Try)) or (isinstance(node, cst.If) and not looks(facts, node.test)):
            continue
        if any(script.inside(node, other) for other in found):
            continue
        home = script.function_of(node)
        early = any(isinstance(n, cst.Return) for n in walk(node.body))
        whole: _Turn = node
        if early and isinstance(home, cst.FunctionDef) and facts.flow.callers(home) and not _fetches(facts, node):
            whole = home
        fetches = isinstance(node, cst.If) and (
            _fetches(facts, whole) or _fills_in(facts, node, whole) or _builds(facts, node)
        )
        if isinstance(script.parents[node], cst.If) or not (fetches or _caches(facts, node)):
            continue
        if not _works_together(facts, whole, _makes_alone(facts, node, whole)):
            found.append(whole)
    return found


def others(facts: ScriptFacts) -> list[cst.Call]:
    """Return the calls that are not made in turns: there whatever is missing is written, by whoever finds it so.

    Nor are those of a lock, which each rank takes and gives back.
    """
    alone, known = turns(facts), dict[cst.CSTNode, bool]()
    locks = [cls for cls in facts.script.of(cst.ClassDef) if _is_lock(facts, cls)]

    def in_turn(node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is in one of ``alone``, or in a function that is run there and nowhere else."""
        home = facts.script.function_of(node)
        if home not in known:
            known[home] = False
            calls = facts.flow.callers(home) if isinstance(home, cst.FunctionDef) else []
            known[home] = bool(calls) and all(map(in_turn, calls))
        return known[home] or any(facts.script.inside(node, other) for other in alone)

    calls = facts.script.calls
    if locks:
        calls = [call for call in calls if facts.script.class_of(call) not in locks]
    return [call for call in calls if not alone or not in_turn(call)]


def _locks(facts: ScriptFacts, node: cst.With) -> bool:
    """Tell whether ``node`` holds a lock that other processes respect: where a rank waits in it, no other comes."""
    for call in (item.item for item in node.items if isinstance(item.item, cst.Call)):
        cls = facts.flow.definition(call.func)
        if _is_lock(facts, cls) if isinstance(cls, cst.ClassDef) else _LOCKS.search(facts.script.name_of(call.func)):
            return True
    return False


def _is_lock(facts: ScriptFacts, cls: cst.ClassDef | None) -> bool:
    """Tell whether entering an object of ``cls`` takes a lock on a file."""
    methods = cls.body.body if cls is not None else ()
    enters = [s for s in methods if isinstance(s, cst.FunctionDef) and s.name.value == "__enter__"]
    named = (facts.script.name_of(n) for s in enters for n in walk(s) if isinstance(n, cst.Attribute))
    return any(map(_LOCKING.search, named))


def _in_turn(node: cst.If | cst.Try | cst.For | cst.With, dl: str) -> cst.With:
    (line,) = statements("torch/in_turn", dl=dl)
    assert isinstance(line, cst.With) and isinstance(line.body, cst.IndentedBlock)
    body = line.body.with_changes(body=[node.with_changes(leading_lines=[])])
    return line.with_changes(leading_lines=node.leading_lines, body=body)


def _calls(facts: ScriptFacts, node: cst.CSTNode, depth: int = 2) -> Iterator[cst.Call]:
    """Yield the calls in ``node``, and in the functions that they run."""
    yield from (n for body in facts.flow.bodies(node, depth) for n in walk(body) if isinstance(n, cst.Call))


def looks(facts: ScriptFacts, test: cst.BaseExpression) -> bool:
    """Tell whether ``test`` looks for a file or a folder, itself or in a function of the script's that it asks."""
    asked = [t for n in walk(test) if isinstance(n, cst.Call) for t in facts.flow.targets(n)]
    found = [n for part in (test, *(f.body for f in asked)) for n in walk(part) if isinstance(n, cst.Call)]
    for call in found:
        name = facts.script.name_of(call.func)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if _LOOKS.search(plain(name)) or (name[:1] in ("", ".") and method in _LOOKING_METHODS and not call.args):
            return True
    return False


def _fetches(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    for call in _calls(facts, node):
        name = facts.script.name_of(call.func)
        if (
            _FETCHES.search(name)
            or commands.acts(facts, call, name)
            or _FETCHERS.search(commands.text_of(facts, call, name))
            or unseen_files.unpacks(facts, call, name)
        ):
            return True
    return False


def sorts_out(facts: ScriptFacts, loop: cst.For) -> bool:
    """Tell whether ``loop`` removes or moves files that it finds in a folder, once, before the training."""
    calls = [n for n in walk(loop) if isinstance(n, cst.Call)]
    names = [facts.script.name_of(call.func) or f".{_method(call)}" for call in calls]
    clears = any(map(_CLEARS.search, names)) and any(map(_LISTS.search, names))
    return clears and once(facts, loop) and not _works_together(facts, loop)


def _fills_in(facts: ScriptFacts, node: cst.If, whole: _Turn) -> bool:
    """Tell whether ``node`` makes a file where it is missing, or takes it where it is there, and ``whole`` makes it."""
    missing = _asks_whether_missing(facts, node.test)
    takes = whole is not node and any(_takes(facts, c) for c in _calls(facts, node))
    if node.orelse is not None or not (missing or takes or _leaves(node, whole)):
        return False
    saves = _makes_alone(facts, node, whole)
    makes = any(_makes(facts, c) or (saves and _is(facts, c, "torch.save")) for c in _calls(facts, whole.body))
    own = isinstance(facts, Facts) and any(facts.local(n) for n in walk(whole.body))
    return makes and not own  # what is averaged needs all ranks at once


def _leaves(node: cst.If, whole: _Turn) -> bool:
    """Tell whether ``node`` leaves the function ``whole``, with nothing in hand, where the file is there."""
    ends = [n for n in walk(node.body) if isinstance(n, cst.Return)]
    return whole is not node and bool(ends) and all(n.value is None for n in ends)


def _makes_alone(facts: ScriptFacts, node: cst.If | cst.Try, whole: _Turn) -> bool:
    """Tell whether what ``node`` misses is saved without a draw of chance, which all ranks would have to make.

    Where ``node`` takes a checkpoint that is there, all ranks go on in the same way: see ``caches``.
    """
    calls = list(_calls(facts, whole.body, depth=3))
    draws = any(_DRAWS.search(facts.script.name_of(c.func)) and argument(c, "generator") is None for c in calls)
    takes = any(_is(facts, c, "torch.load") for c in _calls(facts, node.body))
    return isinstance(node, cst.If) and node.orelse is None and not draws and not takes


def _is(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    return facts.script.name_of(call.func) == name


def _asks_whether_missing(facts: ScriptFacts, test: cst.BaseExpression) -> bool:
    """Tell whether ``test`` is ``not path.exists()``, alone or with others: ``download and not path.exists()``."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return any(_asks_whether_missing(facts, side) for side in (test.left, test.right))
    return isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not) and looks(facts, test)


def _makes(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` makes a file."""
    name = facts.script.name_of(call.func)
    known = bool(_MAKES.search(name)) or _method(call) in _TABLES or to_write(facts, call, name)
    known = known or databases.is_shared(facts, call, name)
    return known or makes_array(call, name) or unseen_files.saves(facts, call, name)


def _builds(facts: ScriptFacts, node: cst.If) -> bool:
    """Tell whether ``node`` has a library, or a function that is given the path, make a file where it is missing."""
    match node.test:
        case cst.UnaryOperation(operator=cst.Not(), expression=cst.Call() as look) if node.orelse is None:
            path = (
                look.args[0].value if look.args else look.func.value if isinstance(look.func, cst.Attribute) else look
            )
            calls = (n for n in walk(node.body) if isinstance(n, cst.Call))
            return any(unseen_files.builds(facts, call, facts.script.code(path)) for call in calls)
    return False


def _takes(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` takes what a file holds."""
    name = facts.script.name_of(call.func)
    opens = name in ("builtins.open", *_ARRAYS) and not _makes(facts, call)
    return bool(_TAKES.search(name)) or opens or unseen_files.may_read(facts, call, name)


def before_listing(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether all ranks come to ``call`` once, the last of those that remove files, and list folders after it."""
    script = facts.script
    if not (name in ("shutil.rmtree", "shutil.move") or commands.removes(facts, call, name)) or not once(facts, call):
        return False
    later = [script.name_of(c.func) or f".{_method(c)}" for c in script.calls if script.order[c] > script.order[call]]
    listed = next((at for at, other in enumerate(later) if _LISTS.search(other) or _FOLDERS.search(other)), -1)
    return listed >= 0 and not any(other == name for other in later[:listed])


def makes_array(call: cst.Call, name: str) -> bool:
    """Tell whether ``call`` makes an array in a new file, which can be read, too: ``np.memmap(f, mode="w+")``."""
    mode = argument(call, "mode", _ARRAYS[name]) if name in _ARRAYS else None
    return isinstance(mode, cst.SimpleString) and str(mode.evaluated_value).startswith("w")


def _caches(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether one branch of a condition, or of an attempt, makes the file that the other one takes."""
    other = node.handlers[0] if isinstance(node, cst.Try) and node.handlers else getattr(node, "orelse", None)
    if not isinstance(node, (cst.If, cst.Try)) or not isinstance(other, (cst.Else, cst.ExceptHandler)):
        return False
    calls = [list(_calls(facts, branch)) for branch in (node.body, other.body)]
    makes = [any(_makes(facts, c) for c in branch) for branch in calls]
    takes = [any(_takes(facts, c) for c in branch) for branch in calls]
    return (makes[0] and takes[1]) or (makes[1] and takes[0])


def _works_together(facts: ScriptFacts, node: cst.CSTNode, saves: bool = False) -> bool:
    """Tell whether ``node`` trains, makes what the ranks share, or runs where not all ranks come by.

    It may save tensors where it ``saves`` them alone.
    """
    script = facts.script
    if is_apart(facts, node):
        return True
    calls = list(_calls(facts, node, depth=3))
    return any(
        _TOGETHER.search(script.name_of(c.func) or f".{_method(c)}")
        or (not saves and _FILES.search(script.name_of(c.func)))
        or facts.kinds.of_call(c) in ("loader", "optimizer", "scheduler")
        or argument(c, "download") is not None
        for c in calls
    )


def is_apart(
    facts: ScriptFacts, node: cst.CSTNode, among: Collection[cst.CSTNode] | None = None, deep: int = 4
) -> bool:
    """Tell whether ``node`` is in a training loop, in what a worker process may run, or in what a decorator wraps.

    Training loops are those ``among``, or all of them. A function is where it is called, as far as workers go, too.
    """
    loops = facts.loops if among is None else among
    above = list(facts.script.above(node))
    home = facts.script.function_of(node)
    calls = facts.flow.callers(home) if isinstance(home, cst.FunctionDef) else []
    wraps = sum(isinstance(up, cst.FunctionDef) for up in above) > 1  # called from where nothing tells
    if wraps and not calls:
        return True
    methods = {u.name.value for u in (node, *above) if isinstance(u, cst.FunctionDef)}
    if any(u in loops for u in above) or not methods.isdisjoint(OF_WORKERS):
        return True
    return deep > 0 and any(is_apart(facts, c, among or (), deep - 1) for c in calls if c is not node)


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
