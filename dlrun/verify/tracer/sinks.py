"""Where a script shows or saves numbers: so that what the runs have not come to can be named."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dlrun.verify.tracer.syntax import callee

SHOWS = {"print", "echo", "info", "log", "log_dict", "log_metric", "log_metrics", "scalar", "add_scalar", "add_scalars"}
WRITES = {"write", "writelines", "writerow", "writerows", "write_text", "to_csv", "to_json", "to_pickle", "to_parquet"}
SAVES = {"dump", "save", "save_model", "save_pretrained", "save_weights", "savetxt", "savez", "savez_compressed"}
LEAVES = {"exit", "_exit", "quit", "abort"}


@dataclass(frozen=True)
class Sink:
    """One of these calls: its name, the lines of its statement."""

    name: str
    first: int
    last: int


def sinks(tree: ast.Module) -> list[Sink]:
    """Return the calls that show numbers, write or save.

    Left out are those of ``except`` clauses and of what ends in an error, those that options alone, such as
    ``args.verbose``, switch off, what functions do that nobody calls, and texts without a number.
    """
    names = (n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute)))
    used = {getattr(n, "id", getattr(n, "attr", "")) for n in names}
    return sorted(_below(tree, used), key=lambda sink: sink.first)


def marked(tree: ast.Module, watch: str, kind: str, others: Collection[int] = ()) -> None:
    """Put a call ``watch(kind, line, None)`` before each statement with a sink, and at lines of ``others``."""
    lines = {sink.first for sink in sinks(tree)} | set(others)
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list) and any(isinstance(s, ast.stmt) for s in statements):
                setattr(node, block, [part for s in statements for part in _with_mark(s, lines, watch, kind)])


def _with_mark(statement: ast.stmt, lines: set[int], watch: str, kind: str) -> Iterator[ast.stmt]:
    if statement.lineno in lines and not hasattr(statement, "body"):
        given: list[ast.expr] = [ast.Constant(kind), ast.Constant(statement.lineno), ast.Constant(None)]
        yield ast.copy_location(ast.Expr(ast.Call(ast.Name(watch, ast.Load()), given, [])), statement)
    yield statement


def _below(node: ast.AST, used: set[str]) -> Iterator[Sink]:
    for child in ast.iter_child_nodes(node):
        uncalled = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_uncalled(child, node, used)
        if uncalled or isinstance(child, ast.ExceptHandler) or _fails(child):
            continue
        if isinstance(child, ast.If) and _is_switched(child.test):
            yield from _below(ast.Module(child.orelse, []), used)
            continue
        if isinstance(child, ast.stmt) and not hasattr(child, "body"):
            names = [name for n in ast.walk(child) if isinstance(n, ast.Call) and (name := _sink(n))]
            if names:
                yield Sink(f"{names[0]}()", child.lineno, child.end_lineno or child.lineno)
        yield from _below(child, used)


def _is_uncalled(function: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.AST, used: set[str]) -> bool:
    """Whether nobody names a function that is no method, which a library may call."""
    return function.name not in used and not function.decorator_list and not isinstance(owner, ast.ClassDef)


def _sink(call: ast.Call) -> str:
    name, is_method = callee(call), isinstance(call.func, ast.Attribute)
    if name == "print":
        return "" if _is_constant(call) else name
    shows = is_method and name in SHOWS and not _is_constant(call)
    # What logarithms compute is no log of theirs.
    logs = name == "log" and isinstance(call.func, ast.Attribute) and _of_numbers(call.func.value)
    found = shows or name in SAVES or (is_method and name in WRITES)
    return ast.unparse(call.func)[-40:] if found and not logs else ""


def _of_numbers(owner: ast.expr) -> bool:
    return ast.unparse(owner).split(".")[0] in {"math", "np", "numpy", "torch", "tf", "F", "K", "cmath", "jnp"}


def _is_constant(call: ast.Call) -> bool:
    return all(isinstance(argument, ast.Constant) for argument in call.args)


def _is_switched(test: ast.expr) -> bool:
    """Whether a condition is made of names and attributes alone, as an option is, or of what the machine has."""
    if isinstance(test, ast.BoolOp):
        return all(map(_is_switched, test.values))
    if isinstance(test, ast.UnaryOp):
        return _is_switched(test.operand)
    if isinstance(test, ast.Compare):
        return _asks_machine(test.left) and all(isinstance(c, ast.Constant) for c in test.comparators)
    plain = all(
        isinstance(n, (ast.Attribute, ast.Load)) or (isinstance(n, ast.Name) and n.id != "self") for n in ast.walk(test)
    )
    return plain or _asks_machine(test)


def _asks_machine(node: ast.expr) -> bool:
    """Whether ``node`` is how many devices there are, or whether there are any."""
    return isinstance(node, ast.Call) and not node.args and callee(node) in ("device_count", "is_available")


def _fails(node: ast.AST) -> bool:
    """Whether a branch ends in an error."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    last = node.body[-1]
    call = getattr(last, "value", None)
    return isinstance(last, ast.Raise) or (isinstance(call, ast.Call) and callee(call) in LEAVES)
