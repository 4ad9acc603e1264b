"""Part of step "metrics": what a format takes of an object, ``"{loss.avg:.4f}".format(loss=losses)``; sample counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.passes.counters import each_update
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import Script, calls_method, walk

_FIELD = re.compile(r"\{(\w+)\.(avg|val|value|mean|average|global_avg|smoothed_value)(?=[:!}])")


def shown(metrics: Metrics, call: cst.CSTNode) -> Iterator[Edit]:
    """Yield the averages of the numbers that formats within ``call`` take of a rank's own meters.

    Before:
        print("loss {loss.avg:.4f}".format(loss=losses))

    After:
        print("loss {loss_avg:.4f}".format(loss_avg=dl.average(losses.avg)))
    """
    for node in (n for n in walk(call) if calls_method(n, "format")):
        taken = [n for n in walk(node.func) if isinstance(n, cst.SimpleString)]
        fields = list(dict.fromkeys(found for text in taken for found in _FIELD.findall(text.value)))
        whole = "".join(text.value for text in taken)
        for arg in node.args:
            name = arg.keyword.value if arg.keyword is not None else ""
            mine = [attribute for field, attribute in fields if field == name]
            others = len(re.findall(rf"\{{{name}[^\w]", whole)) - sum(f == name for f, _ in _FIELD.findall(whole))
            if mine and not others and metrics.trained(arg.value):
                why = "the mean over the ranks, not rank 0's own"
                yield Edit(arg, why, partial(_numbers, metrics, name, mine))
                for text in taken:
                    if any(field == name for field, _ in _FIELD.findall(text.value)):
                        yield Edit(text, why, partial(_flat, name))


def fed(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Yield the means with which meters are fed that are shown themselves: ``print(losses)``, ``str(losses)``.

    Before:
        losses.update(loss.item(), len(x))
        print(losses)

    After:
        losses.update(dl.average(loss.item()), len(x))
        print(losses)
    """
    found: list[cst.CSTNode] = []
    for call in (c for c in metrics.script.calls if calls_method(c, "update")):
        meter = call.func.value
        if not metrics.trained(meter) or not _speaks(metrics, meter):
            continue
        if _is_shown(metrics, meter) and metrics.all_ranks(call) and each_update(metrics.facts, call):
            given = [a for a in call.args if not a.star and (a.keyword is not None or a is call.args[0])]
            values = [a.value for a in given if metrics.trained(a.value)]
            found.extend(values)
            why = "a meter that is shown itself takes the mean over the ranks, not rank 0's own"
            yield from (Edit(value, why, metrics.wrapped) for value in values)
            if any(metrics.local(a.value) and not metrics.scalar(a.value) for a in call.args if a not in given):
                name = metrics.script.code(meter)
                why = f"{name} is shown itself, and counts what is right in rank 0's own samples"
                yield Doubt(call, why, "medium", f"show {metrics.facts.alias}.average() of each of its numbers")
    if found:
        metrics.cut(found)


def _speaks(metrics: Metrics, meter: cst.BaseExpression) -> bool:
    """Tell whether ``meter`` is an object of the script's own that says in text what it has come to."""
    flow = metrics.facts.flow
    return any(flow.method(cls, name) for cls in flow.classes(meter) for name in ("__str__", "__repr__", "__format__"))


def _is_shown(metrics: Metrics, meter: cst.BaseExpression) -> bool:
    """Tell whether ``meter`` goes as a whole into a text, or to what may print it; ``{loss.avg}`` takes a part only."""
    script = metrics.script
    bindings = script.bindings_of(meter)
    return any(bindings and script.bindings_of(n) == bindings and _is_whole(script, n)
               for n in script.named(script.code(meter)))  # fmt: skip


def _is_whole(script: Script, name: cst.Name) -> bool:
    parent = script.parents[name]
    match parent:
        case cst.FormattedStringExpression() | cst.BinaryOperation(operator=cst.Modulo()):
            return True
        case cst.Element():
            return not isinstance(script.parents[script.parents[parent]], (cst.AssignTarget, cst.For))
        case cst.Arg():
            return parent.keyword is not name and not _takes_parts(script.parents[parent], parent)
    return False


def _takes_parts(call: cst.CSTNode, arg: cst.Arg) -> bool:
    """Tell whether ``call`` is a format that takes only numbers of the object ``arg``, as ``shown`` reads them."""
    if not isinstance(call, cst.Call) or not calls_method(call, "format") or arg.keyword is None:
        return False
    name, text = arg.keyword.value, "".join(n.value for n in walk(call.func) if isinstance(n, cst.SimpleString))
    taken = [found for found, _ in _FIELD.findall(text) if found == name]
    return len(re.findall(rf"\{{{name}[^\w]", text)) == len(taken)


def counts(metrics: Metrics, call: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the counts of a rank's own samples that ``call`` shows alone: of ``seen += len(x)``, ``len(hits)``."""
    for node in walk(call):
        parent = metrics.script.parents[node]
        alone = isinstance(parent, (cst.Arg, cst.FormattedStringExpression, cst.Element))
        named = isinstance(node, (cst.Name, cst.Attribute)) and alone and node not in metrics.trained.cuts
        if isinstance(node, (cst.Name, cst.Attribute)) and named and metrics.sums.counted(node):
            yield node
        if isinstance(node, (cst.Call, cst.Subscript)) and alone and metrics.sums.is_length(node):
            yield node


def _numbers(metrics: Metrics, name: str, attributes: list[str], arg: cst.Arg) -> cst.FlattenSentinel[cst.Arg]:
    """Return one argument for each number that is taken of the object ``arg``."""
    args = [
        arg.with_changes(keyword=cst.Name(f"{name}_{attribute}"),
                         value=metrics.wrapped(cst.Attribute(arg.value, cst.Name(attribute))),
                         comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        for attribute in attributes]  # fmt: skip
    args[-1] = args[-1].with_changes(comma=arg.comma)
    return cst.FlattenSentinel(args)


def _flat(name: str, text: cst.SimpleString) -> cst.SimpleString:
    """Return the format with ``{loss_avg}`` in place of ``{loss.avg}``."""
    return text.with_changes(value=_FIELD.sub(lambda m: f"{{{m[1]}_{m[2]}" if m[1] == name else m[0], text.value))
