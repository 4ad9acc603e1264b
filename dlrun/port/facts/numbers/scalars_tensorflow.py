"""Which functions of TensorFlow make one number."""

from __future__ import annotations

import re
from collections.abc import Callable

import libcst as cst

from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.lists import Lists
from dlrun.port.program.flow import Flow

# Functions of TensorFlow that make one number of single numbers, and those that make one number of anything.
_OF_NUMBERS = re.compile(
    r"^tensorflow\.(math\.)?(minimum|maximum|cast|to_float|exp|log|sqrt|square|abs|add|subtract|"
    r"multiply|divide|negative|pow|identity|stop_gradient|constant|Variable)$"
)
_ONE_NUMBER = re.compile(
    r"^tensorflow\.(compat\.v1\.)?(nn\.l2_loss|(linalg\.)?global_norm|losses\.get_\w+_loss|"
    r"train\.(get_\w*global_step|\w+_decay))$|"
    r"^tensorflow\.compat\.v1\.losses\.[a-z]\w+$"
)
_ADDS = re.compile(r"^tensorflow\.(math\.)?add_n$")
_NORM = re.compile(r"^tensorflow\.(linalg\.)?norm$")  # of all entries, where no axis is given
_LOSSES = re.compile(r"^tensorflow\.(get_collection|losses\.get_(regularization_)?losses)$")
_FIRST = ("cast", "to_float", "constant", "Variable")  # of these the first argument tells


def of_tensorflow(flow: Flow, call: cst.Call, name: str, is_number: Callable[[cst.CSTNode], bool]) -> bool:
    """Tell whether ``call`` of TensorFlow's ``name`` makes one number: a loss of TensorFlow 1, or one of numbers."""
    given = [arg.value for arg in call.args if arg.keyword is None]
    if _ADDS.search(plain(name)):
        made = [o.node for o in flow.origins(given[0])] if given else []
        if given and Lists(flow).of(given[0], is_number):
            return True
        return bool(made) and all(_is_losses(flow, n) or (_each(n) and all(map(is_number, _each(n)))) for n in made)
    if _NORM.search(plain(name)):
        return len(call.args) == 1
    if _OF_NUMBERS.search(plain(name)):
        given = given[:1] if name.endswith(_FIRST) else given
        return bool(given) and all(map(is_number, given))
    if plain(name) == "tensorflow.cond":
        return len(given) == 3 and all(isinstance(v, cst.Lambda) and is_number(v.body) for v in given[1:])
    reduced = any(a.keyword and a.keyword.value == "reduction" for a in call.args)
    return not reduced and bool(_ONE_NUMBER.search(name))


def _is_losses(flow: Flow, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a list of losses that TensorFlow keeps: ``net.losses``, ``get_collection("losses")``."""
    if isinstance(node, cst.Call):
        return bool(_LOSSES.search(plain(flow.script.name_of(node.func))))
    return isinstance(node, cst.Attribute) and node.attr.value == "losses"


def _each(entries: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the entries of a list that is written out, or made in a comprehension."""
    if isinstance(entries, (cst.ListComp, cst.GeneratorExp)):
        return [entries.elt]
    return [e.value for e in entries.elements] if isinstance(entries, (cst.List, cst.Tuple)) else []
