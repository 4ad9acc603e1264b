"""Part of step "start": each rank works on its own GPU, the one that init() has made the current one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import calls_method, dotted

_NUMBERED = re.compile(r"^cuda:\d+$")
_PARALLEL = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel")


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Turn fixed GPU numbers into "the current GPU", which is another one on each rank.

    Before:
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    After:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    """
    script = facts.script
    for node in script.nodes:
        if isinstance(node, cst.SimpleString) and _NUMBERED.search(str(node.evaluated_value)):
            yield Edit(node, "this rank's GPU, not one for all", _unnumbered)
        elif _chosen(node):
            yield Edit(node, "this rank's GPU, not one for all", lambda _: cst.SimpleString('"cuda"'))
    yield from masks(facts)
    for call in script.calls:
        name = script.name_of(call.func)
        if name in _PARALLEL:
            yield Edit(call, "one GPU a rank: the ranks are the parallelism", _on_one_gpu)
        elif name == "torch.cuda.device" and call.args:
            yield Edit(call.args[0].value, "this rank's GPU, not one for all", lambda _: expression("torch/own_gpu"))
        elif name == "torch.cuda.set_device" and call.args:
            yield Edit(call.args[0].value, "init() has chosen this rank's GPU",
                       lambda _: expression("torch/current_gpu"))  # fmt: skip
        elif calls_method(call, "cuda") and call.args:
            first = call.args[0]
            if isinstance(first.value, cst.Integer) and first.keyword is None:
                yield Edit(call, "this rank's GPU, not one for all", lambda c: c.with_changes(args=c.args[1:]))
            elif first.keyword is None and any(w in dotted(first.value).lower() for w in ("gpu", "device_id", "rank")):
                yield Doubt(call, f"GPU number {script.code(first.value)}: all ranks would take the same", "medium",
                            f"{script.code(call.func)}()")  # fmt: skip


def _chosen(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` names a GPU by a computed number: ``f"cuda:{gpu}"``, ``"cuda:" + str(gpu)``."""
    match node:
        case cst.FormattedString(parts=[cst.FormattedStringText(value="cuda:"), cst.FormattedStringExpression()]):
            return True
        case cst.BinaryOperation(left=cst.SimpleString() as text, operator=cst.Add()):
            return text.evaluated_value == "cuda:"
        case cst.BinaryOperation(left=cst.SimpleString() as text, operator=cst.Modulo()):
            return text.evaluated_value in ("cuda:%d", "cuda:%s", "cuda:%i")
        case cst.Call(func=cst.Attribute(value=cst.SimpleString() as text, attr=cst.Name("format"))):
            return text.evaluated_value in ("cuda:{}", "cuda:{:d}", "cuda:{0}")
    return False


def _unnumbered(node: cst.SimpleString) -> cst.SimpleString:
    return node.with_changes(value=re.sub(r"cuda:\d+", "cuda", node.value))


def _on_one_gpu(call: cst.Call) -> cst.Call:
    """Return DataParallel(...) with ``device_ids`` naming the current GPU only."""
    only = expression("torch/one_gpu")
    kept: list[cst.Arg] = []
    for i, arg in enumerate(call.args):
        given = (arg.keyword is not None and arg.keyword.value == "device_ids") or (arg.keyword is None and i == 1)
        if given:
            return call.with_changes(args=[*kept, arg.with_changes(value=only), *call.args[i + 1 :]])
        kept.append(arg)
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    added = cst.Arg(only, keyword=cst.Name("device_ids"), equal=tight)
    if not kept:
        return call
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return call.with_changes(args=[*kept[:-1], kept[-1].with_changes(comma=comma), added])


def masks(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Yield the changes of ``os.environ["CUDA_VISIBLE_DEVICES"] = "0"``, which would undo the launcher's choice."""
    code = facts.script.code
    for node in facts.script.nodes:
        target = node.targets[0].target if isinstance(node, cst.Assign) else None
        if not (isinstance(target, cst.Subscript) and facts.script.name_of(target.value) == "os.environ"):
            continue
        index = target.slice[0].slice
        key = index.value if isinstance(index, cst.Index) else None
        if not isinstance(key, cst.SimpleString) or key.evaluated_value != "CUDA_VISIBLE_DEVICES":
            continue
        assert isinstance(node, cst.Assign)
        lines = statements("torch/keep_mask", environ=code(target.value), key=code(key), value=code(node.value))
        line = facts.script.line_of(node)
        if isinstance(line, cst.SimpleStatementLine):
            yield Edit(line, "the launcher gives each rank its GPU", partial(_in_place, lines[0]))


def _in_place(new: cst.CSTNode, old: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(old, cst.SimpleStatementLine)
    return new.with_changes(leading_lines=old.leading_lines)
