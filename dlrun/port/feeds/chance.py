"""Data that are made with random numbers: each process draws others, where nothing seeds all alike."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted, walk

_RANDOM = re.compile(
    r"^(torch\.(rand|randn|randint|randperm|normal|bernoulli|rand_like|randn_like)|numpy\.random\.\w+|random\.\w+|"
    r"builtins\.set|"
    r"tensorflow\.(compat\.v1\.)?random[._]\w+|sklearn\.datasets\.make_\w+|sklearn\.model_selection\.train_test_split)$"
)
_DRAWS = ("randrange", "randint", "random", "shuffle", "sample", "choice", "choices", "uniform", "gauss")


def drawn(flow: Flow, node: cst.CSTNode, seen: set[cst.CSTNode] | None = None) -> bool:
    """Tell whether ``node`` is made with random numbers: itself, or by what it is made of and given."""
    script = flow.script
    seen = set() if seen is None else seen
    for n in walk(node):
        if n in seen:
            continue
        seen.add(n)
        if isinstance(n, cst.Call):
            called = script.name_of(n.func) or (f"random.{dotted(n.func)}" if dotted(n.func) in _DRAWS else "")
            if _RANDOM.search(called) or any(  # `from random import *` leaves a name without a module
                drawn(flow, target.body, seen) for target in flow.targets(n)
            ):
                return True
        elif isinstance(n, cst.Name):
            bindings = script.bindings_of(n)
            values: list[cst.CSTNode] = [b.value for b in bindings if b.how == "assign" and b.value]
            if any(b.how == "param" for b in bindings):
                values.extend(o.node for o in flow.origins(n))
            if any(drawn(flow, value, seen) for value in values):
                return True
    return False
