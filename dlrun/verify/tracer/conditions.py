"""The conditions that decide how long a script trains, made visible without changing what they decide.

Ranks that leave the training loop at different steps wait for each other for ever, and a patience of ten epochs
hides that from a run of a few steps. So every condition is watched that guards the way out of a training loop or a
collective call, or that sets a variable which such a condition reads: its operands have to be equal on all ranks,
or what dl_comm makes of them, as ``dl.average(loss)``. So has the length of each ``range``, or list of numbers, that a
loop of steps goes through: a resumed checkpoint may have set it.
Those that choose what is saved, such as the best model so far, are watched too: rank 0 acts on them for all; and those
under which the training changes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from dlrun.verify.tracer.bounds import ORDERS, bounds_in, numbers
from dlrun.verify.tracer.changes import CHANGE, changing, periodic
from dlrun.verify.tracer.endings import BATCHES, UNTIL, batched, counted, ended, goes_on
from dlrun.verify.tracer.leaving import LEAVES, asked, leaving
from dlrun.verify.tracer.recorder import Recorder
from dlrun.verify.tracer.sinks import marked
from dlrun.verify.tracer.syntax import Loop, callee, inside
from dlrun.verify.tracer.told import Whole

WATCH = "__dlrun_watch__"
TURNS = "the number of iterations"  # of a loop through a range
REACHED = "reached"  # a statement that shows or saves
SINGLE = "single"  # a decision: a loop each iteration of which is a step
# What all ranks have alike, whatever it is made of.
SHARED = {"average", "broadcast", "total", "maximum", "minimum", "gather", "agree", "any_rank", "all_ranks"}
COLLECTIVE = SHARED | {"gradients", "barrier", "shard", "load"}
TRAINING = {
    "step",
    "backward",
    "gradients",
    "run",  # run() of a session
    "gradient",
    "apply_gradients",
    "minimize",
    "train_on_batch",
}
COMPUTING = {"backward", "gradient"}  # what ranks may do as often as each likes
KEEPS = {"deepcopy", "get_weights", "state_dict"}  # and what begins with save


def watched(source: str, filename: str, ends: bool = False) -> Any:
    """Return the script's code, its deciding conditions reported to ``WATCH(kind, text, condition, operands)``.

    ``ends``: loops through epochs, too, are left when all steps are made, so that the script comes to its end.
    """
    tree = ast.parse(source, filename)
    stepping = counting(tree)
    functions = _training_functions(tree, TRAINING - COMPUTING)
    kinds = dict.fromkeys(choosing(tree), "choice")
    kinds |= dict.fromkeys(changing(tree, counting(tree, Loop), functions), CHANGE)
    kinds |= dict.fromkeys(deciding(tree) | exiting(tree), "decision")
    kinds |= dict.fromkeys(leaving(tree, counting(tree, Loop)), LEAVES)
    kinds |= dict.fromkeys((line for line in counting(tree, (ast.While,)) if line in kinds), LEAVES)
    kinds |= dict.fromkeys(stepping, "decision")
    kinds |= dict.fromkeys(stepping & counted(tree, counting(tree, Loop)), SINGLE)
    loops = batched(tree, stepping) | (counting(tree, (ast.For, ast.While)) if ends else set())
    seldom = computed_seldom(tree)
    inserted = _Insert(kinds, faces(tree), loops).visit(tree)
    marked(inserted, WATCH, REACHED, seldom)
    return compile(ast.fix_missing_locations(inserted), filename, "exec")


def faces(tree: ast.Module) -> frozenset[str]:
    """Return the names that a script has for dl_comm's modules."""
    found = [
        (alias, getattr(n, "module", None))
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for alias in n.names
    ]
    return frozenset(alias.asname or alias.name for alias, origin in found if "dl_comm" in f"{origin}.{alias.name}")


def counting(tree: ast.Module, kinds: tuple[type[ast.AST], ...] = (ast.For,)) -> set[int]:
    """Return the lines of the loops, of these ``kinds``, in which an optimizer makes steps."""
    stepping = _training_functions(tree, TRAINING - COMPUTING)
    loops = [node for node in ast.walk(tree) if isinstance(node, kinds) and _trains(node, stepping)]
    return {node.lineno for node in loops if isinstance(node, Loop)}


def computed_seldom(tree: ast.Module) -> dict[int, str]:
    """Return the first lines of what is computed every so many iterations that train, each with its condition."""
    return periodic(tree, counting(tree, Loop), _training_functions(tree, TRAINING - COMPUTING))


def choosing(tree: ast.Module) -> set[int]:
    """Return the lines of the conditions that compare by size and under which something is saved."""
    compares = [n for n in ast.walk(tree) if isinstance(n, ast.If) and _compares(n.test)]
    return {node.lineno for node in compares if any(_keeps(part) for line in node.body for part in ast.walk(line))}


def _compares(test: ast.AST) -> bool:
    return any(isinstance(op, ORDERS) for n in ast.walk(test) if isinstance(n, ast.Compare) for op in n.ops)


def _keeps(node: ast.AST) -> bool:
    name = getattr(node, "attr", getattr(node, "id", ""))
    return isinstance(node, (ast.Attribute, ast.Name)) and (name.startswith("save") or name in KEEPS)


def deciding(tree: ast.Module) -> set[int]:
    """Return the lines of the conditions that are watched."""
    training, dl = _training_functions(tree), faces(tree)
    scopes = [n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef))]
    home = {node: number for number, scope in enumerate(scopes) for node in inside(scope)}
    found: list[Any] = []
    for loop in (n for n in ast.walk(tree) if isinstance(n, Loop)):
        if not _trains(loop, training):
            continue
        if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
            found.append(loop)
        deeper = {id(n) for inner in inside(loop) if isinstance(inner, Loop) for n in inside(inner)}
        found += [n for n in inside(loop) if isinstance(n, ast.If) and _leaves(n, id(n) not in deeper)]
    found += [n for n in ast.walk(tree) if isinstance(n, ast.If) and n not in found and _stops(n)]
    reads = {key for node in found for key in _keys(names_in(node.test, dl), home.get(node))}
    candidates = [n for n in ast.walk(tree) if isinstance(n, ast.If)]
    grown = True
    while grown:  # conditions that set what a deciding condition reads
        more = [n for n in candidates if n not in found and reads & _keys(_assigned(n), home.get(n))]
        found, grown = found + more, bool(more)
        reads |= {key for node in more for key in _keys(names_in(node.test, dl), home.get(node))}
    return {node.lineno for node in found}


def exiting(tree: ast.Module) -> set[int]:
    """Return the lines of the conditions that compare by size and under which the script exits, with a code of its own.

    As one that has not come to an accuracy.
    """
    compares = [n for n in ast.walk(tree) if isinstance(n, ast.If) and _compares(n.test)]
    return {n.lineno for n in compares if any(_exits(part) for line in (*n.body, *n.orelse) for part in ast.walk(line))}


def _exits(node: ast.AST) -> bool:
    made = node.exc if isinstance(node, ast.Raise) else None
    raised = made.func if isinstance(made, ast.Call) else made
    calls = isinstance(node, ast.Call) and callee(node) in {"exit", "quit"}
    return calls or (isinstance(raised, ast.Name) and raised.id == "SystemExit")


def _keys(names: set[str], scope: int | None) -> set[tuple[int | None, str]]:
    """Return what tells variables apart: of a plain name its scope, of an attribute its own name, whatever holds it."""
    return {(None, name.rpartition(".")[2]) if "." in name else (scope, name) for name in names}


def watch(recorder: Recorder) -> Callable[..., Any]:
    """Return the function that the watched conditions call."""

    parts: dict[str, Any] = {}
    come_to, asked_last = set[str](), dict[str, tuple[int, int]]()

    def report(
        kind: str,
        text: str,
        condition: Any,
        operands: Callable[[], dict[str, Any]] | None = None,
        bounds: Callable[[], dict[str, Any]] | None = None,
    ) -> Any:
        if kind == BATCHES:
            return ended(recorder, condition)
        if kind == UNTIL:
            return goes_on(recorder, asked_last, text, condition)
        if kind == REACHED:
            if text not in come_to:
                come_to.add(text)
                recorder.note(REACHED, line=text)
            return None
        if operands is None:  # a part of the condition that is about to be reported
            parts[text] = condition
            return condition
        try:
            given = operands()
        except (LookupError, NameError, TypeError):  # a short circuit kept the script from reading it too
            given = {}
        given |= parts
        parts.clear()
        through = condition.iterable if type(condition).__name__.startswith("tqdm") else condition
        values = {TURNS: float(len(through))} if _counts(through) else {}
        for name, value in given.items():
            if kind != LEAVES and isinstance(value, Whole):
                continue  # the rank's number: what one rank alone does is seen by its parameters, or its calls
            try:
                values[name] = float(value.detach() if hasattr(value, "detach") else value)
            except Exception:  # not a number: nothing to compare
                continue
        with recorder.aside():
            facts: dict[str, Any] = {"single": True} if kind == SINGLE else {"leaves": True} if kind == LEAVES else {}
            if ranks := [n for n, value in given.items() if isinstance(value, Whole) or n.endswith("()")]:
                facts["ranks"] = ranks
            facts |= {"taken": True} if kind == CHANGE and condition is True else {}
            facts |= {"bounds": compared} if bounds and (compared := numbers(bounds)) else {}
            noted = "decision" if kind in (SINGLE, LEAVES) else kind
            recorder.note(noted, what=text, values=values, statistics=recorder.statistics(), **facts)
        return condition

    return report


def _counts(through: Any) -> bool:
    """Whether a loop goes through a range, a list of whole numbers, or a rank's share of those."""
    listed = type(through) is list or (isinstance(through, list) and type(through).__module__.startswith("dl_comm."))
    return isinstance(through, range) or (listed and all(type(i) is int for i in through))


class _Insert(ast.NodeTransformer):
    def __init__(self, kinds: dict[int, str], dl: frozenset[str], batches: set[int]) -> None:
        self._kinds = kinds  # of the conditions at these lines
        self._dl = dl
        self._batches = batches  # the lines of loops through batches

    def _visit(self, node: ast.If | ast.While) -> ast.AST:
        self.generic_visit(node)
        if node.lineno in self._kinds:
            leads_out = asked(node.test) if self._kinds[node.lineno] == LEAVES else set()
            names = sorted(names_in(node.test, self._dl) | _items(node.test, self._dl) | leads_out)
            values = ast.Dict([ast.Constant(n) for n in names], [ast.parse(n, mode="eval").body for n in names])
            nothing = ast.arguments([], [], None, [], [], None, [])
            kind, text = ast.Constant(self._kinds[node.lineno]), ast.Constant(ast.unparse(node.test))
            bounds = ast.Lambda(nothing, bounds_in(node.test))
            call: list[ast.expr] = [kind, text, _Parts(self._dl).visit(node.test), ast.Lambda(nothing, values), bounds]
            node.test = ast.copy_location(ast.Call(ast.Name(WATCH, ast.Load()), call, []), node.test)
        return node

    visit_If = _visit  # noqa: N815

    def visit_While(self, node: ast.While) -> ast.AST:
        """Report the condition; end the loop when all steps are made, but for one that has no condition."""
        constant = isinstance(node.test, ast.Constant)
        self._visit(node)
        if node.lineno in self._batches and not constant:
            given: list[ast.expr] = [ast.Constant(UNTIL), ast.Constant(str(node.lineno)), node.test]
            node.test = ast.copy_location(ast.Call(ast.Name(WATCH, ast.Load()), given, []), node.test)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        """Report the length of a range; end a loop through batches when all steps are made."""
        self.generic_visit(node)
        if node.lineno in self._kinds:
            nothing = ast.Lambda(ast.arguments([], [], None, [], [], None, []), ast.Dict([], []))
            given: list[ast.expr] = [
                ast.Constant(self._kinds[node.lineno]),
                ast.Constant(ast.unparse(node.iter)),
                node.iter,
                nothing,
            ]
            node.iter = ast.copy_location(ast.Call(ast.Name(WATCH, ast.Load()), given, []), node.iter)
        if node.lineno in self._batches:
            given = [ast.Constant(BATCHES), ast.Constant(""), node.iter]
            node.iter = ast.copy_location(ast.Call(ast.Name(WATCH, ast.Load()), given, []), node.iter)
        return node


class _Parts(ast.NodeTransformer):
    """Reports what ``dl``, dl_comm's names, make of one rank's numbers in a condition."""

    def __init__(self, dl: frozenset[str]) -> None:
        self._dl = dl

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not _is_shared(node, self._dl):
            return self.generic_visit(node)
        given: list[ast.expr] = [ast.Constant("part"), ast.Constant(ast.unparse(node)), node]
        return ast.copy_location(ast.Call(ast.Name(WATCH, ast.Load()), given, []), node)


def _is_shared(call: ast.Call, dl: frozenset[str]) -> bool:
    name = ast.unparse(call.func)
    return callee(call) in SHARED and (name in dl or name.rpartition(".")[0] in dl)


def names_in(node: ast.AST, dl: frozenset[str] = frozenset()) -> set[str]:
    """Return the names and dotted names that an expression reads, ``self.best`` included; callees are left out.

    So is what ``dl``, the names of dl_comm, make alike on all ranks.
    """
    if isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        return {text} if all(part.isidentifier() for part in text.split(".")) else names_in(node.value, dl)
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Call):
        if _is_shared(node, dl):
            return set()
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None  # loss of loss.item()
        given = [*([inner] if inner else []), *node.args, *(keyword.value for keyword in node.keywords)]
        return {x for part in given for x in names_in(part, dl)}
    return {x for child in ast.iter_child_nodes(node) for x in names_in(child, dl)}


def _items(node: ast.AST, dl: frozenset[str]) -> set[str]:
    """Return the items that an expression reads, ``losses["val"]``, where no call is in their names."""
    if isinstance(node, ast.Call) and _is_shared(node, dl):
        return set()
    if isinstance(node, ast.Subscript) and not any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(node)):
        return {ast.unparse(node)}
    return {x for child in ast.iter_child_nodes(node) for x in _items(child, dl)}


def _assigned(node: ast.If) -> set[str]:
    """Return the names assigned below a condition."""
    targets: list[ast.AST] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Assign):
            targets += part.targets
        elif isinstance(part, (ast.AugAssign, ast.AnnAssign)):
            targets.append(part.target)
    return {name for target in targets for name in names_in(target)}


def _leaves(node: ast.If, own: bool) -> bool:
    """Whether a branch leaves the loop, skips a step, or calls what all ranks have to call.

    ``own``: no other loop stands between, which ``break`` and ``continue`` would be meant for.
    """
    for part in inside(node):
        if isinstance(part, (ast.Return, ast.Raise)) or (own and isinstance(part, (ast.Break, ast.Continue))):
            return True
        if isinstance(part, ast.Call) and callee(part) in COLLECTIVE | {"exit", "quit"}:
            return True
    return False


def _stops(node: ast.If) -> bool:
    """Whether a branch tells ``fit()``, or a session that is monitored, to end."""
    targets = [t for part in inside(node) if isinstance(part, ast.Assign) for t in part.targets]
    called = any(isinstance(part, ast.Call) and callee(part) == "request_stop" for part in inside(node))
    return called or any(isinstance(t, ast.Attribute) and t.attr == "stop_training" for t in targets)


def _trains(node: ast.AST, training: set[str]) -> bool:
    """Whether a call below makes a training step. One that gives back several things is an environment's step."""
    several = {id(n.value) for n in ast.walk(node) if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Tuple)}
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and callee(n) in training]
    return any(callee(n) != "step" or id(n) not in several for n in calls)


def _training_functions(tree: ast.Module, calls: set[str] = TRAINING) -> set[str]:
    """Return the names whose call makes one of these ``calls``, such as a step, through the script's own functions."""
    training, before = set(calls), -1
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    while len(training) > before:
        before = len(training)
        training |= {f.name for f in functions if _trains(f, training)}
    return training
