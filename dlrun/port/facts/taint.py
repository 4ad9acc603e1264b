"""Which values differ between the ranks: what a model computes from its rank's batch, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds, plays
from dlrun.port.program.script import Script, calls_method, walk

_LEAVES = ("item", "detach", "tolist", "numpy")
DRAWS = ("random.", "numpy.random.", "torch.rand", "torch.bernoulli")


class Taint:
    """What carries rank-local values: all that a value goes into, starting from the expressions ``seeds``."""

    def __init__(
        self, script: Script, kinds: Kinds, seeds: Iterable[cst.CSTNode], cuts: Iterable[cst.CSTNode] = ()
    ) -> None:
        """Follow assignments, arguments and returns until nothing new turns up; ``cuts`` are known to be equal."""
        self.script = script
        self.seeds = set(seeds)
        self.cuts = set(cuts)
        self._reached: set[object] = {*(self.seeds - self.cuts)}
        todo: list[object] = list(self._reached)
        while todo:
            for onward in kinds.spread.into.get(todo.pop(), ()):
                if onward not in self._reached and onward not in self.cuts:
                    self._reached.add(onward)
                    todo.append(onward)

    def __call__(self, node: cst.CSTNode) -> bool:
        """Tell whether the value of ``node`` may differ between the ranks. A comparison's outcome counts as decided."""
        return node in self._reached


def forwards(script: Script, kinds: Kinds, where: Callable[[cst.CSTNode], bool]) -> list[cst.CSTNode]:
    """Return the calls of modules and losses, and ``.item()`` calls, at places for which ``where`` holds."""
    found: list[cst.CSTNode] = []
    for call in script.calls:
        item = calls_method(call, "item")
        if (item or kinds.of(call.func) in ("module", "loss")) and where(call):
            found.append(call)
    return found


def made_of(script: Script, samples: Taint, where: Callable[[cst.CSTNode], bool]) -> list[cst.CSTNode]:
    """Return the calls that are made with ``samples``, and that make something of them, where ``where`` holds."""
    found: list[cst.CSTNode] = []
    for call in script.calls:
        given = [*(a.value for a in call.args), *([call.func.value] if isinstance(call.func, cst.Attribute) else [])]
        if samples(call) and any(map(samples, given)) and where(call):
            found.append(call)
    return found


def chances(script: Script) -> list[cst.CSTNode]:
    """Return the calls that read the clock or draw at random: each rank sees something else."""
    return [call for call in script.calls if script.name_of(call.func).startswith(("time.", "datetime.", *DRAWS))]


def draws(script: Script, node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the calls in ``node`` that draw at random."""
    return [n for n in walk(node) if isinstance(n, cst.Call) and script.name_of(n.func).startswith(DRAWS)]


def without_gradients(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` runs under no_grad(), of a block or of the function around it."""
    above = list(script.above(node))
    managers = [item.item for up in above if isinstance(up, cst.With) for item in up.items]
    managers += [made.decorator for up in above if isinstance(up, cst.FunctionDef) for made in up.decorators]
    return any("no_grad" in script.code(manager) for manager in managers)


def losses(script: Script) -> list[cst.BaseExpression]:
    """Return the values at which ``backward()`` begins."""
    return [call.func.value for call in script.calls if calls_method(call, "backward")]


def leads_back(follows: Taint) -> bool:
    """Tell whether ``backward()`` begins at a value that ``follows`` reaches, or a tape's ``gradient()``."""
    script = follows.script
    taped = [c for c in script.calls if calls_method(c, "gradient") and not script.name_of(c.func).startswith("numpy.")]
    return any(map(follows, (*losses(script), *(c.args[0].value for c in taped if c.args))))


def plain_numbers(script: Script, kinds: Kinds, values: Taint) -> Taint:
    """Return what is made of those of ``values`` that gradients do not go back through: of ``loss.item()``."""
    found: list[cst.CSTNode] = [n for n in script.of(cst.Attribute) if n.attr.value == "data"]
    found += script.of(cst.Comparison)  # as an array of outcomes
    found += [n.value for n in script.of(cst.Assign) if plays(kinds, n)]  # what an environment answers
    for call in script.calls:
        name, again = script.name_of(call.func), any(a.keyword and a.keyword.value == "create_graph" for a in call.args)
        leaves = calls_method(call, *_LEAVES)
        runs = kinds.of(call.func) in ("module", "loss") and without_gradients(script, call)
        if leaves or runs or name == "builtins.float" or (name == "torch.autograd.grad" and not again):
            found.append(call)
    return Taint(script, kinds, [n for n in found if values(n)])


def differentiable(script: Script, kinds: Kinds, values: Taint, numbers: Taint) -> Taint:
    """Return which of ``values`` gradients go back through; ``numbers`` are plain."""
    models = [s for s in values.seeds if isinstance(s, cst.Call) and kinds.of(s.func) in ("module", "loss")]
    return Taint(script, kinds, [*models, *(s for s in values.seeds if not numbers(s))], numbers.seeds)
