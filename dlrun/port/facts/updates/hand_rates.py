"""Updates by hand: their rates, ``lr`` in ``w -= lr * w.grad``, and what is none but a disturbance of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.program.script import Script, calls_method, walk

_WRITES = ("add_", "sub_", "copy_", "assign", "assign_add", "assign_sub")
_SCALARS = ("alpha", "value")  # how torch's add_ and sub_ call the number that they multiply with
_SIZES = ("shape", "size", "ndim", "dim", "numel", "dtype", "device")
Holds = Callable[[cst.CSTNode], bool]


def rates_in(update: cst.CSTNode, holds: Holds) -> tuple[cst.BaseExpression, ...]:
    """Return what the statement ``update`` multiplies gradients with before it takes them off the weights.

    ``holds`` tells gradients. What is added to something, as to the mean of gradients so far, has no rate.
    """
    found: dict[cst.BaseExpression, None] = {}
    for node in walk(update):
        if isinstance(node, cst.Assign):
            found.update(dict.fromkeys(_factors(node.value, holds, taken=False)))
        elif isinstance(node, cst.AugAssign) and isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign)):
            taken = isinstance(node.operator, cst.SubtractAssign)
            found.update(dict.fromkeys(_factors(node.value, holds, taken)))
        elif calls_method(node, *_WRITES):
            found.update(dict.fromkeys(_given(node, holds, taken=node.func.attr.value.rstrip("_").endswith("sub"))))
    return tuple(found)


def _given(call: cst.Call, holds: Holds, taken: bool) -> Iterator[cst.BaseExpression]:
    scalar = next((a.value for a in call.args if a.keyword is not None and a.keyword.value in _SCALARS), None)
    plain = [a.value for a in call.args if a.keyword is None]
    if len(plain) == 2 and holds(plain[1]) and not holds(plain[0]):  # add_(-lr, gradient) of old
        scalar = plain[0]
    if scalar is None:
        for value in plain:
            yield from _factors(value, holds, taken)
    elif taken != _is_minus(scalar):
        yield _bare(scalar)


def _factors(value: cst.BaseExpression, holds: Holds, taken: bool) -> Iterator[cst.BaseExpression]:
    """Yield the rate at which ``value`` takes a gradient off, where it is so ``taken`` (or a minus is in it)."""
    if _is_minus(value):
        yield from _factors(_bare(value), holds, not taken)
    elif isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Add, cst.Subtract)):
        for side in (value.left, value.right):
            if holds(side):
                turned = side is value.right and isinstance(value.operator, cst.Subtract)
                yield from _factors(side, holds, taken != turned)
    elif isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Multiply, cst.Divide)):
        factors = [f for f in _multiplied(value) if not holds(f)]
        if taken != (sum(map(_is_minus, factors)) % 2 == 1):
            yield from sorted(map(_bare, factors), key=lambda f: isinstance(f, (cst.Integer, cst.Float)))[:1]


def _multiplied(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the factors of a product, those of the numerator where it is divided."""
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply):
        yield from _multiplied(value.left)
        yield from _multiplied(value.right)
    elif isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide):
        yield from _multiplied(value.left)
    else:
        yield value


def _is_minus(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Minus)


def _bare(value: cst.BaseExpression) -> cst.BaseExpression:
    return value.expression if isinstance(value, cst.UnaryOperation) else value


def disturbs(script: Script, node: cst.CSTNode, holds: Holds) -> bool:
    """Tell whether ``node`` changes what a function, or a loop, makes of samples: ``d = torch.zeros_like(x)``.

    Beside an optimizer, which has the weights, a rank so disturbs its own samples by their own gradients.
    """
    if not isinstance(node, (cst.AugAssign, cst.Assign, cst.Expr)):
        return False
    target = next((n for n in walk(node) if isinstance(n, cst.Name) and n in script.scopes), None)
    bindings = script.bindings_of(target) if target is not None else []
    made = [
        b.written
        for b in bindings
        if not script.inside(b.node, node) and not (b.written is not None and holds(b.written))
    ]
    return bool(made) and all(value is not None and _of_given(script, value) for value in made)


def _of_given(script: Script, made: cst.CSTNode) -> bool:
    """Tell whether ``made`` is computed from the values that a function is given, or a loop gives: not from a size."""
    named = (n for n in walk(made) if isinstance(n, cst.Name) and n in script.scopes)
    whole = (n for n in named if not (isinstance(up := script.parents[n], cst.Attribute) and up.attr.value in _SIZES))
    return any(b.how == "param" or b.path[:1] == ("each",) for n in whole for b in script.bindings_of(n))
