"""Part of step "metrics": what a format takes of an object, ``"{loss.avg:.4f}".format(loss=losses)``; sample counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts.torch import calls_method
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import walk

_FIELD = re.compile(r"\{(\w+)\.(avg|val|value|mean|average|global_avg|smoothed_value)(?=[:!}])")


def shown(metrics: Metrics, call: cst.Call) -> Iterator[Edit]:
    """Yield the averages of the numbers that formats within ``call`` take of a rank's own meters.

    Before:
        print("loss {loss.avg:.4f}".format(loss=losses))

    After:
        print("loss {loss_avg:.4f}".format(loss_avg=dl.average(losses.avg)))
    """
    for node in (n for n in walk(call) if isinstance(n, cst.Call) and calls_method(n, "format")):
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


def counts(metrics: Metrics, call: cst.Call) -> Iterator[Edit]:
    """Yield the sums over the ranks of the counts of samples that ``call`` shows by themselves: ``seen += len(x)``."""
    for node in walk(call):
        parent = metrics.script.parents[node]
        alone = isinstance(parent, (cst.Arg, cst.FormattedStringExpression, cst.Element))
        if isinstance(node, cst.Name) and alone and metrics.sums.counted(node):
            yield Edit(node, "the samples of all ranks, not rank 0's own", metrics.totalled)


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
