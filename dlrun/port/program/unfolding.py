"""Comprehensions that train are read, and written, as the loops that they are."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Calls that make gradients or use them; the functions that make such calls train, and those that call them.
_TRAINS = {"backward", "apply_gradients", "train_on_batch"}
# What takes all that a generator yields, at once.
_EXHAUSTS = {"sum", "list", "tuple", "set", "frozenset", "dict", "deque", "Counter", "max", "min", "sorted", "fsum"}
_EXHAUSTS |= {"mean", "fmean", "geometric_mean", "median", "stdev", "pstdev", "variance", "prod", "extend", "join"}
# What is not gone through once, or each time anew.
_Turned = ast.ListComp | ast.GeneratorExp
_Statement = ast.Assign | ast.AugAssign | ast.Expr | ast.Return | ast.Assert | ast.If | ast.For
_BEHIND = r"\s*(#.*)?\s*"  # a statement that has its lines for itself
_BEHIND_HEAD = r"\s*:\s*(#.*)?\s*"


@dataclass(frozen=True)
class Growth:
    """A statement that became longer: the line of the new text on which it begins, and how many lines were added."""

    line: int
    added: int


def trainers(sources: Iterable[str | bytes]) -> frozenset[str]:
    """Return the names of the functions and methods in ``sources`` that train, themselves or by what they call."""
    calls: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.walk(_parsed(source)):
            if isinstance(node, ast.FunctionDef):
                calls.setdefault(node.name, set()).update(_called(node))
            elif (bound := _partial(node)) is not None:
                calls.setdefault(bound[0], set()).add(bound[1])
    found = {name for name, called in calls.items() if called & _TRAINS}
    while more := {name for name, called in calls.items() if called & found} - found:
        found |= more
    return frozenset(found)


def drawn(sources: Iterable[str | bytes], names: frozenset[str]) -> frozenset[str]:
    """Return those of ``names`` that are generators: going through what they yield trains."""
    nodes = [n for source in sources for n in ast.walk(_parsed(source))]
    functions = (n for n in nodes if isinstance(n, ast.FunctionDef))
    yields = {f.name for f in functions if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in _own(f))}
    yields |= {bound[0] for n in nodes if (bound := _partial(n)) is not None and bound[1] in yields}
    return frozenset(yields & names)


def _partial(node: ast.AST) -> tuple[str, str] | None:
    """Return the names of ``run = partial(steps, model)``: what is bound, and the function that it calls."""
    match node:
        case ast.Assign(targets=[ast.Name(id=bound)], value=ast.Call(func=func, args=[ast.Name(id=called), *_])):
            return (bound, called) if "partial" in _called(ast.Expr(ast.Call(func, [], []))) else None
    return None


def unfolded(
    source: str | bytes, names: frozenset[str], generators: frozenset[str] = frozenset()
) -> tuple[str | bytes, list[Growth]]:
    """Return ``source`` with loops in place of comprehensions that call one of ``names``, and where it grew.

    So it is with what takes all that one of ``generators`` yields, ``list(epoch(loader))``, and with ``map()``.

    Before:
        losses = [step(x, y) for x, y in loader]

    After:
        losses = []
        for x, y in loader:
            losses.append(step(x, y))
    """
    found = _found(_parsed(source), names | _TRAINS, generators)
    if not found:
        return source, []
    coding = tokenize.detect_encoding(io.BytesIO(source).readline)[0] if isinstance(source, bytes) else ""
    text = source.decode(coding) if isinstance(source, bytes) else source
    lines, grown, moved = [f"{line}\n" for line in text.split("\n")], list[Growth](), 0
    for statement, turned in found:
        end_line, end_column = _end(statement)
        first, last = statement.lineno - 1 + moved, end_line + moved
        indent = lines[first][: statement.col_offset]
        before, after = lines[first].encode()[: statement.col_offset], lines[last - 1].encode()[end_column:].decode()
        alone = re.fullmatch(_BEHIND if _head(statement) is None else _BEHIND_HEAD, after)
        if before.strip() or not alone or lines[first][statement.col_offset :].startswith("elif"):
            continue
        new = _written(text, statement, turned, indent)
        new[-1] += after.rstrip()  # a comment, with the blanks before it
        end = "\r\n" if lines[first].endswith("\r\n") else "\n"
        lines[first:last] = [line + end for part in new for line in part.splitlines()]
        grown.append(Growth(first + 1, sum(len(part.splitlines()) for part in new) - (last - first)))
        moved += grown[-1].added
    text = "".join(lines)[:-1]
    return text.encode(coding) if isinstance(source, bytes) else text, grown


def before_growth(line: int, grown: Iterable[Growth]) -> int:
    """Return the line of the text as it was, of ``line`` in that with loops."""
    return line - sum(min(g.added, line - g.line) for g in grown if line > g.line)


def _parsed(source: str | bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _called(node: ast.AST) -> set[str]:
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls}


def _found(
    tree: ast.Module, names: frozenset[str], generators: frozenset[str]
) -> list[tuple[_Statement, list[_Turned]]]:
    """Return the statements with comprehensions that call one of ``names``, in source order."""
    found: list[tuple[_Statement, list[_Turned]]] = []
    for scope in (n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.FunctionDef))):
        for statement in (n for n in _own(scope) if isinstance(n, _Statement)):
            head = _head(statement)
            read = statement if head is None else ast.Expr(head)
            turned: list[_Turned] = [n for n in _evaluated(read) if _called(n.elt) & names or _draws(n, generators)]
            turned += [_gone_through(n) for n in _taken_whole(read, generators)]
            turned += [_mapped(n) for n in _taken_whole(read, frozenset({"map"})) if _maps(n, names)]
            if turned and not any(_clashes(scope, statement, each) for each in turned):
                found.append((statement, sorted(turned, key=lambda n: (n.lineno, n.col_offset))))
    return sorted(found, key=lambda pair: pair[0].lineno)


def _head(statement: ast.stmt) -> ast.expr | None:
    """Return what a statement with a body evaluates once, before it: a test, or what a loop goes through."""
    return statement.test if isinstance(statement, ast.If) else getattr(statement, "iter", None)


def _end(statement: _Statement) -> tuple[int, int]:
    """Return the line and the column, in bytes, behind ``statement``; of one with a body behind its head."""
    last = _head(statement) or statement
    return last.end_lineno or last.lineno, last.end_col_offset or 0


def _draws(turned: _Turned, generators: frozenset[str]) -> bool:
    """Tell whether a comprehension goes through what one of ``generators`` yields."""
    over = turned.generators[0].iter
    return isinstance(over, ast.Call) and bool(_called(ast.Expr(ast.Call(over.func, [], []))) & generators)


def _taken_whole(node: ast.AST, generators: frozenset[str]) -> Iterator[ast.Call]:
    """Yield the calls of ``generators`` all of which something takes at once: ``list(epoch(loader))``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(
            child, (ast.Lambda, ast.IfExp, ast.BoolOp, ast.SetComp, ast.DictComp, ast.ListComp, ast.GeneratorExp)
        ):
            continue
        exhausts = isinstance(child, ast.Call) and _called(ast.Expr(ast.Call(child.func, [], []))) & _EXHAUSTS
        if isinstance(child, ast.Starred) or (isinstance(child, ast.Call) and exhausts and child.args):
            first = child.value if isinstance(child, ast.Starred) else child.args[0]  # zip(*epoch(loader))
            if isinstance(first, ast.Call) and _called(ast.Expr(ast.Call(first.func, [], []))) & generators:
                yield first
        yield from _taken_whole(child, generators)


def _gone_through(call: ast.Call) -> ast.ListComp:
    """Return the comprehension that goes through what ``call`` yields, standing where it does."""
    each = ast.ListComp(
        ast.Name("each_result", ast.Load()),
        [ast.comprehension(ast.Name("each_result", ast.Store()), call, [], 0)],
    )
    return ast.copy_location(each, call)


def _maps(call: ast.Call, names: frozenset[str]) -> bool:
    """Tell whether ``call`` is ``map(step, loader)``, where ``step`` is one of ``names``."""
    if not isinstance(call.func, ast.Name) or len(call.args) != 2 or call.keywords:
        return False
    return bool(_called(ast.Expr(ast.Call(call.args[0], [], []))) & names)


def _mapped(call: ast.Call) -> ast.ListComp:
    """Return the comprehension that does what ``call`` of ``map()`` does, standing where it does."""
    run, over = call.args
    each = ast.Call(run, [ast.Name("each_result", ast.Load())], [])
    goes = ast.comprehension(ast.Name("each_result", ast.Store()), over, [], 0)
    return ast.copy_location(ast.ListComp(each, [goes]), call)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in ``scope``, but for what is in functions and classes of it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _own(child)


def _evaluated(node: ast.AST) -> Iterator[_Turned]:
    """Yield the comprehensions in ``node`` that are gone through once, whatever else happens."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Lambda, ast.IfExp, ast.BoolOp, ast.SetComp, ast.DictComp)):
            continue
        if isinstance(child, ast.ListComp):
            yield child
        elif isinstance(child, ast.GeneratorExp):
            if _exhausts(node):
                yield child
        else:
            yield from _evaluated(child)


def _exhausts(node: ast.AST) -> bool:
    """Tell whether ``node`` takes all that a generator directly in it yields: ``max(...)``, ``first, *rest = ...``."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Tuple, ast.List)) for target in node.targets)
    called = _called(ast.Expr(ast.Call(node.func, [], []))) if isinstance(node, ast.Call) else set()
    return isinstance(node, ast.Starred) or not called.isdisjoint(_EXHAUSTS)


def _clashes(scope: ast.AST, statement: ast.stmt, turned: _Turned) -> bool:
    """Tell whether ``scope`` reads names that the loop would bind, elsewhere: a comprehension keeps them to itself.

    Not where a loop, or another comprehension, has bound them anew.
    """
    within = [n for n in ast.walk(turned.elt) if isinstance(n, ast.ListComp)]
    bound = set[str]().union(*(_named(g.target) for each in (turned, *within) for g in each.generators))

    def reads(node: ast.AST, free: set[str]) -> bool:
        if node is _head(statement) or (node is statement and _head(statement) is None):
            return False
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            return False
        if isinstance(node, ast.Name):
            return isinstance(node.ctx, ast.Load) and node.id in free
        if isinstance(node, ast.For):
            free = free - _named(node.target)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            free = free.difference(*(_named(g.target) for g in node.generators))
        return any(reads(child, free) for child in ast.iter_child_nodes(node))

    return any(reads(child, bound) for child in ast.iter_child_nodes(scope)) or any(
        g.is_async for g in turned.generators
    )


def _named(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _loops(text: str, turned: _Turned, name: str, depth: str) -> list[str]:
    """Return the lines that fill the list ``name``; where an entry is such a list itself, it is filled before."""
    out = [f"{depth}{name} = []"] if name else []
    for part in turned.generators:
        out.append(f"{depth}for {_on_one_line(part.target)} in {_on_one_line(part.iter)}:")
        depth += "    "
        for test in part.ifs:
            out.append(f"{depth}if {_on_one_line(test)}:")
            depth += "    "
    each = _on_one_line(turned.elt)
    if name and isinstance(turned.elt, ast.ListComp):
        each = next(n for n in (f"{name}_of_one", f"{name}_of_each_one", f"{name}_of_every_one") if n not in text)
        out += _loops(text, turned.elt, each, depth)
    return [*out, f"{depth}{name}.append({each})" if name else f"{depth}{each}"]


def _written(text: str, statement: _Statement, turned: list[_Turned], indent: str) -> list[str]:
    """Return the lines of the loops, and of what ``statement`` does with their results."""
    first = turned[0]
    if isinstance(statement, ast.Expr) and statement.value is first:
        return _loops(text, first, "", indent)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if isinstance(target, ast.Name) and getattr(statement, "value", None) is first and target.id not in _named(first):
        return _loops(text, first, target.id, indent)
    names = [n for n in ("results", "all_results", "results_of_all") if n not in text]
    names += [n for k in range(len(turned)) if (n := f"results_{k}") not in text]
    out = [line for each, name in zip(turned, names, strict=False) for line in _loops(text, each, name, indent)]
    lines = [line.encode() for line in text.split("\n")]
    end_line, end_column = _end(statement)
    lines[end_line - 1] = lines[end_line - 1][:end_column]
    for each, name in reversed([*zip(turned, names, strict=False)]):
        assert each.end_lineno is not None and each.end_col_offset is not None
        begun, behind = lines[each.lineno - 1][: each.col_offset], lines[each.end_lineno - 1][each.end_col_offset :]
        taken = f"({name})" if _shares_brackets(statement, each) else name
        lines[each.lineno - 1 : each.end_lineno] = [begun + taken.encode() + behind]
        end_line -= each.end_lineno - each.lineno
    return [*out, b"\n".join(lines[statement.lineno - 1 : end_line]).decode()]


def _shares_brackets(statement: _Statement, each: _Turned) -> bool:
    """Tell whether the brackets around a generator are those of the call that gets it: ``sum(f(x) for x in xs)``."""
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and n.args == [each]]
    return isinstance(each, ast.GeneratorExp) and any(
        (c.end_lineno, c.end_col_offset) == (each.end_lineno, each.end_col_offset) for c in calls
    )


def _on_one_line(node: ast.expr) -> str:
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store):
        return ", ".join(map(ast.unparse, node.elts))
    return ast.unparse(node)
