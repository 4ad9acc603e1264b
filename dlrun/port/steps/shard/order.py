"""Part of step "shard": data that each process would put in an order, or split, of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.output import unseen_files
from dlrun.port.steps.output.downloads import sorts_out, turns

_LISTS = ("os.listdir", "os.scandir", "glob.glob", "glob.iglob", "os.walk")
_LISTED = ("os.listdir", "glob.glob")  # of these that return lists
_REMOVES = ("os.remove", "os.unlink", "shutil.rmtree")
_SORTS = ("builtins.sorted", "natsort.natsorted", "builtins.len", "builtins.max", "builtins.min", "builtins.set")
_SPLITS = (
    "sklearn.model_selection.train_test_split",
    "sklearn.model_selection.ShuffleSplit",
    "sklearn.model_selection.StratifiedShuffleSplit",
)
_SEEDS = ("numpy.random.seed", "transformers.set_seed", "lightning.seed_everything")
_STRICT = ("deterministic", "experimental_deterministic")  # of tf.data.Options: whether a data set keeps its order
_FILLS = ("append", "extend", "add", "insert")
_KEEPS = ("append", "extend", "insert", "setdefault", "update")  # as they come
_SETS = (cst.BitOr, cst.BitAnd, cst.BitXor, cst.Subtract)
_ALGEBRA = ("difference", "union", "intersection", "symmetric_difference")
_NUMBERS = ("builtins.enumerate", "builtins.list", "builtins.tuple", "builtins.zip")
_DEEP = 4  # names that are followed
_BLOCKS = (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.If, cst.For, cst.While, cst.Try, cst.With)


def torch(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Let all ranks take rank 0's order of a set; yield a doubt, each kind once, where they may not meet.

    And about splits and listings that differ from rank to rank. What is drawn after init() is one for all ranks, which
    then draw rank 0's random numbers.
    """
    script = facts.script
    yield from list(_at_will(facts))[:1]
    seeded = any(script.name_of(c.func) in _SEEDS for c in script.calls)
    kinds: set[str] = set()
    for call in script.calls:
        name = script.name_of(call.func)
        early = name in _SPLITS and not seeded and argument(call, "random_state") is None and before_init(facts, call)
        if early and "split" not in kinds:
            kinds.add("split")
            why = (
                "NumPy is not seeded, and this runs before the ranks meet: each splits the data in its own way, and "
                "trains on what others validate on"
            )
            yield Doubt(
                call, why, "high", "pass random_state=0, or call numpy.random.seed() first", name="order-differs"
            )
        elif name not in _LISTS or _sorted(facts, call) or _is_removed(facts, call):
            continue
        elif is_listed_alike(facts, call):
            yield Edit(
                call,
                "nodes may list files in different orders: all ranks take rank 0's",
                partial(_same, facts.alias, name in _LISTED),
            )
        elif "listing" not in kinds:
            kinds.add("listing")
            yield Doubt(
                call,
                "nodes may list files in different orders, and the ranks then share one order of numbers "
                "but not of samples",
                "medium",
                f"sorted({script.code(call)})",
                name="order-differs",
            )
    yield from list(_of_sets(facts))


def _is_removed(facts: ScriptFacts, listed: cst.Call) -> bool:
    """Tell whether a listing of files, by its name, is all gone through to remove them: their order is nobody's."""
    line = facts.script.statement_of(listed)
    target = line.targets[0].target if isinstance(line, cst.Assign) and line.value is listed else None
    uses = [n for n in facts.script.named(target.value) if n is not target] if isinstance(target, cst.Name) else []
    loops = [up for n in uses if isinstance(up := facts.script.parents[n], cst.For) and up.iter is n]
    if not loops or len(loops) < len(uses):
        return False
    calls = [n for loop in loops for n in walk(loop.body) if isinstance(n, cst.Call)]
    return bool(calls) and all(facts.script.name_of(c.func) in _REMOVES for c in calls)


def _of_sets(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Let all ranks take rank 0's order of a set whose entries get numbers; one doubt where they may not meet."""
    script, told = facts.script, False
    calls = [c for c in script.calls if _numbers_a_set(facts, c, script.name_of(c.func))]
    gone = [f.iter for f in script.of(cst.For) if f.iter not in calls and _numbers_by_loop(facts, f)]
    for node in (*calls, *gone):
        inner = node if node in gone else node.args[0].value  # type: ignore[attr-defined]
        if _is_ordered(facts, inner):
            continue
        if ".parameters()" in script.code(inner):
            yield Doubt(
                node,
                "a set has another order in each process: the ranks would average the gradients of unlike parameters",
                "high",
                "[p for p in model.parameters() if p in ...]",
                name="order-differs",
            )
        elif _meet(facts, node):
            whole = node if script.name_of(getattr(node, "func", node)) == "builtins.list" else inner
            yield Edit(
                whole,
                "a set has another order in each process: all ranks take rank 0's",
                partial(_same, facts.alias, whole is not inner),
            )
        elif not told:
            told, wanted = True, f"sorted({script.code(inner)})"
            yield Doubt(
                node,
                "a set of texts has another order in each process, and so numbers given to its entries, unless "
                "PYTHONHASHSEED is set, as dlrun launch does",
                "low",
                f"{script.code(node.func)}({wanted})" if isinstance(node, cst.Call) and node is not inner else wanted,
                name="order-differs",
            )


def _numbers_by_loop(facts: ScriptFacts, loop: cst.For) -> bool:
    """Tell whether ``loop`` goes through a set and keeps its entries in this order: ``ids[word] = len(ids)``.

    What it keeps under the entries themselves, ``right[label] = (...).sum()``, has no order.
    """
    if not _is_set(facts, loop.iter) or _holds_numbers(facts, loop.iter):
        return False
    inside = list(walk(loop.body))
    counted = {dotted(n.target) for n in inside if isinstance(n, cst.AugAssign)}
    stores = [n for n in inside if isinstance(n, cst.Assign) and isinstance(n.targets[0].target, cst.Subscript)]
    fills = [n for n in inside if isinstance(n, cst.Call) and calls_method(n, *_KEEPS)]
    return (
        any(_goes_by(n.value, counted) for n in stores)
        or any(calls_method(n, *_FILLS) or _goes_by(n, counted) for n in fills)
        or any(isinstance(n, cst.Call) and bool(facts.flow.targets(n)) for n in inside)
    )


def _goes_by(value: cst.CSTNode, counted: set[str]) -> bool:
    """Tell whether ``value`` is computed from how many entries there have been."""
    return any(
        (isinstance(n, cst.Call) and dotted(n.func) == "len") or (isinstance(n, cst.Name) and n.value in counted)
        for n in walk(value)
    )


def _at_will(facts: ScriptFacts) -> Iterator[Doubt]:
    """Yield doubts about data sets of TensorFlow that may hand out their elements in another order in each process."""
    for node in facts.script.nodes:
        wanted, write = None, ""
        if isinstance(node, cst.Assign) and _is_option(facts, target := node.targets[0].target):
            wanted, write = node.value, f"{facts.script.code(target)} = True"
        elif calls_method(node, "map", "interleave"):
            wanted, write = argument(node, "deterministic"), "deterministic=True"
        elif isinstance(node, cst.Call) and facts.script.name_of(node.func).startswith("tensorflow_datasets."):
            mixed = argument(node, "shuffle_files")
            wanted = cst.Name("False") if mixed is not None and dotted(mixed) not in ("", "False") else None
            write = "shuffle_files=False, and shuffle() what it loads"
        if wanted is not None and dotted(wanted) not in ("True", "None"):
            yield Doubt(
                node,
                "its elements may come in another order in each process: of the same batches some ranks "
                "take one twice, and none another",
                "medium",
                write,
                name="order-differs",
            )


def _is_option(facts: ScriptFacts, target: cst.BaseExpression) -> bool:
    """Tell whether ``target`` is an option of TensorFlow's data sets, and not PyTorch's of cuDNN."""
    if not isinstance(target, cst.Attribute) or target.attr.value not in _STRICT:
        return False
    made = [facts.script.name_of(o.node.func) for o in facts.flow.origins(target.value) if isinstance(o.node, cst.Call)]
    return target.attr.value == _STRICT[1] or any(name.endswith("data.Options") for name in made)


def before_init(facts: ScriptFacts, call: cst.CSTNode) -> bool:
    """Tell whether ``call`` runs before init(): where a module is imported."""
    imported = getattr(facts, "uncalled", None) is not None or facts.script.tree_of(call) is not facts.script.module
    return imported and isinstance(facts.script.function_of(call), cst.Module)


def _sorted(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether what ``call`` lists is sorted or counted: around it, or in place on the name it is bound to.

    Or whether nothing is kept of it: its files are removed or moved.
    """
    turn = next((up for up in facts.script.above(call) if isinstance(up, cst.For) and sorts_out(facts, up)), None)
    if turn is not None:
        return not any(isinstance(n, cst.Attribute) and n.attr.value in _FILLS for n in walk(turn))
    for up in facts.script.above(call):
        if isinstance(up, cst.Call) and facts.script.name_of(up.func) in _SORTS:
            return True
        if isinstance(up, cst.DictComp):
            return False  # numbered as they come, whoever sorts the dict
        if isinstance(up, cst.Assign):
            return _sorts(facts, facts.script.code(up.targets[0].target))
        if isinstance(up, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return isinstance(up, (cst.If, cst.Assert, cst.While))
    return False


def _sorts(facts: ScriptFacts, name: str) -> bool:
    """Tell whether something sorts what is called ``name``, or nothing but counts it."""
    script = facts.script
    given = [c for c in script.calls if c.args and script.code(c.args[0].value) == name]
    if any(script.name_of(c.func) in _SORTS[:2] for c in given):
        return True
    if any(calls_method(c, "sort") and script.code(c.func.value) == name for c in script.calls):
        return True
    uses = [
        n
        for n in (*script.of(cst.Name), *script.of(cst.Attribute))
        if dotted(n) == name
        and not isinstance(up := script.parents[n], cst.AssignTarget)
        and not (isinstance(up, cst.Attribute) and up.attr is n)
    ]
    asked = sum(_asks_whether_any(script.parents[n], n) for n in uses)
    return asked < len(uses) == asked + sum(script.name_of(c.func) in _SORTS for c in given)


def _asks_whether_any(user: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Tell whether ``user`` asks of the list ``node`` whether it holds anything: ``if not found:``."""
    denied = isinstance(user, cst.UnaryOperation) and isinstance(user.operator, cst.Not)
    return denied or (isinstance(user, (cst.If, cst.IfExp, cst.While)) and user.test is node)


def _same(dl: str, is_list: bool, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return rank 0's list of what ``node`` holds."""
    return expression("torch/same", {"value": node if is_list else cst.Call(cst.Name("list"), [cst.Arg(node)])}, dl=dl)


def _meet(facts: ScriptFacts, call: cst.CSTNode) -> bool:
    """Tell whether all ranks come to ``call``, once and together: a line of the script outside of every block.

    Or one of those below its main guard, if it has one, where the ranks meet.
    """
    script = facts.script
    above = list(script.above(call))
    inside = [up for up in above if not (isinstance(up, cst.For) and script.inside(call, up.iter))]
    blocks = [up for up in inside if isinstance(up, _BLOCKS) and up is not facts.guard]
    comprehensions = [up for up in above if isinstance(up, cst.BaseComp)]
    once = all(script.inside(call, comp.for_in.iter) for comp in comprehensions)
    met = facts.guard is None or facts.guard in above
    return met and once and not blocks and script.tree_of(call) is script.module and not before_init(facts, call)


def is_listed_alike(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` lists files in whichever order, where all ranks come together: they take rank 0's list."""
    name = facts.script.name_of(call.func)
    alike = name not in _LISTS or name == "os.scandir" or _sorted(facts, call) or _is_removed(facts, call)
    return not alike and not _is_printed(facts, call) and _come_together(facts, call)


def _is_printed(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether a call is nothing but printed, which is rank 0's."""
    up = facts.script.parents[node]
    call = facts.script.parents[up] if isinstance(up, cst.Arg) else None
    return isinstance(call, cst.Call) and facts.script.name_of(call.func) == "builtins.print"


def _come_together(facts: ScriptFacts, node: cst.CSTNode, depth: int = _DEEP) -> bool:
    """Tell whether all ranks come to ``node`` together: where they meet, or in a function that is only called there.

    Not below a test, or in a loop: how often each rank comes there is not known here.
    """
    script = facts.script
    function = script.function_of(node)
    if not isinstance(function, cst.FunctionDef):
        return _meet(facts, node)
    inside = [up for up in script.above(node) if script.inside(up, function.body)]
    inside = [up for up in inside if not (isinstance(up, cst.For) and script.inside(node, up.iter))]
    inside = [up for up in inside if not (isinstance(up, cst.BaseComp) and script.inside(node, up.for_in.iter))]
    plain = not any(isinstance(up, (*_BLOCKS, cst.BaseComp)) for up in inside) and function.asynchronous is None
    made = script.class_of(function) is None or function.name.value == "__init__"
    calls = facts.flow.callers(function) if depth and plain and made else []
    leaves = [n for n in walk(function.body) if isinstance(n, (cst.Return, cst.Yield))]
    early = any(script.order[n] < script.order[node] for n in leaves)
    return (
        bool(calls)
        and not early
        and function not in turns(facts)
        and not any(_runs_in_turn(facts, call) for call in calls)
        and all(_come_together(facts, call, depth - 1) for call in calls)
    )


def _runs_in_turn(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether rank 0 makes ``call`` first, and the others when it is done: it may make what they find."""
    name = facts.script.name_of(call.func)
    asked = (unseen_files.unpacks, unseen_files.prepares, unseen_files.may_make, unseen_files.saves)
    return any(made(facts, call, name) for made in asked)


def _is_ordered(facts: ScriptFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a list of what a set held, of which all ranks took rank 0's order where it was made."""
    made = _made(facts, node)
    return isinstance(made, cst.Call) and facts.script.name_of(made.func) in _NUMBERS


def _numbers_a_set(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call`` puts the entries of a set in an order, which nothing sorts later."""
    numbers = name in _NUMBERS and bool(call.args) and _is_set(facts, call.args[0].value)
    return numbers and not _sorted(facts, call) and not _holds_numbers(facts, call.args[0].value)


def _holds_numbers(facts: ScriptFacts, node: cst.CSTNode, depth: int = 4) -> bool:
    """Tell whether ``node`` surely holds numbers alone: sets of such are in one order in all processes."""
    made = _made(facts, node)
    if made is None or not depth:
        return False
    if isinstance(made, (cst.ListComp, cst.SetComp, cst.GeneratorExp)):
        counts = isinstance(made.elt, cst.Call) and facts.script.name_of(made.elt.func)
        return isinstance(made.elt, cst.Integer) or counts in ("builtins.int", "builtins.len")
    if isinstance(made, (cst.List, cst.Set)):
        return bool(made.elements) and all(isinstance(e.value, cst.Integer) for e in made.elements)
    if not isinstance(made, cst.Call):
        return False
    name, called = facts.script.name_of(made.func), made.func
    if isinstance(called, cst.Attribute) and called.attr.value == "tolist":  # of a tensor; arrays may hold strings
        owner = _made(facts, called.value)
        return isinstance(owner, cst.Call) and facts.script.name_of(owner.func).startswith("torch.")
    if name == "builtins.range":
        return True
    given = [called.value] if isinstance(called, cst.Attribute) and called.attr.value in _ALGEBRA else []
    given += [a.value for a in made.args] if given or name in (*_NUMBERS, "builtins.set", "builtins.frozenset") else []
    return bool(given) and all(_holds_numbers(facts, n, depth - 1) for n in given)


def _made(facts: ScriptFacts, node: cst.CSTNode) -> cst.CSTNode | None:
    """Return what ``node`` is, or the one value that its name gets."""
    if not isinstance(node, cst.Name):
        return node
    bindings = facts.script.bindings_of(node)
    return bindings[0].value if len(bindings) == 1 and bindings[0].how == "assign" and not bindings[0].path else None


def _is_set(facts: ScriptFacts, node: cst.CSTNode, depth: int = _DEEP) -> bool:
    """Tell whether ``node`` is a set, or a list made of one, that nothing has sorted."""
    match node:
        case cst.Set() | cst.SetComp():
            return True
        case cst.ListComp(for_in=cst.CompFor(iter=gone)) | cst.GeneratorExp(for_in=cst.CompFor(iter=gone)):
            return _is_set(facts, gone, depth)
        case cst.List(elements=parts) | cst.Tuple(elements=parts):
            return any(isinstance(e, cst.StarredElement) and _is_set(facts, e.value, depth) for e in parts)
        case cst.BinaryOperation(left=left, operator=operator, right=right) if isinstance(operator, _SETS):
            return _is_set(facts, left, depth) or _is_set(facts, right, depth)
        case cst.Call():
            name = facts.script.name_of(node.func)
            if name in ("builtins.set", "builtins.frozenset"):
                return bool(node.args) or depth < _DEEP  # filled later
            if calls_method(node, *_ALGEBRA):
                return _is_set(facts, node.func.value, depth)
            return name in _NUMBERS and bool(node.args) and _is_set(facts, node.args[0].value, depth)
        case cst.Name() if depth:
            bindings = facts.script.bindings_of(node)
            made = [b.value for b in bindings if b.how == "assign" and not b.path and b.value is not None]
            others = [b for b in bindings if b.value not in made and not isinstance(b.node, cst.AugAssign)]
            sorts = any(
                calls_method(c, "sort") and facts.script.code(c.func.value) == node.value for c in facts.script.calls
            )
            return not sorts and not others and bool(made) and all(_is_set(facts, v, depth - 1) for v in made)
    return False
