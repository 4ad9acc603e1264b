"""Where a script numbers its GPU by the rank within the node: dlrun launch shows each rank its own GPU first."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.insert import expression
from dlrun.port.program.script import dotted
from dlrun.port.translation import Found, Translation

_TAKE = ("set_device", "device", "cuda", "to")
_LISTS = re.compile(r"(gpu|device)s?$", re.I)
_SPELT = re.compile(r"(cuda|gpu):", re.I)


def local_rank(translation: Translation, call: cst.Call) -> str:
    """Return the template of the rank within the node: that of the rank's GPU, where it numbers one."""
    return "gpu" if _numbers_gpu(translation, call) else "local_rank"


def named(translation: Translation) -> Found:
    """Yield the rank's GPU for names of the rank within the node that number one: ``set_device(local_rank)``."""
    script = translation.script
    for node in script.nodes:
        if not isinstance(node, cst.Name) or isinstance(script.parents[node], (cst.AssignTarget, cst.Param)):
            continue
        bound = script.bindings_of(node)
        ranks = [isinstance(b.value, cst.Call) and translation.foreign(b.value.func) == "local_rank" for b in bound]
        if ranks and all(ranks) and _numbers_gpu(translation, node):
            yield Edit(
                node, "this rank's GPU among those it sees", lambda _: expression("from/gpu", dl=translation.alias)
            )


def _numbers_gpu(translation: Translation, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is the number of a GPU: of ``set_device``, ``gpus[...]``, ``"cuda:..."``."""
    for up in translation.script.above(node):
        match up:
            case cst.Call(func=cst.Attribute(attr=cst.Name(method))) if method in _TAKE:
                return True
            case cst.Subscript(value=value) if _LISTS.search(dotted(value)):
                return True
            case cst.FormattedString() | cst.BinaryOperation() if _SPELT.search(translation.script.code(up)):
                return True
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Attribute(attr=cst.Name("visible_device_list")))]):
                return True
            case cst.BaseSmallStatement() | cst.BaseCompoundStatement():
                return False
    return False
