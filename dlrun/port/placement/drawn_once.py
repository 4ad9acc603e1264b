"""Whether an epoch draws each sample once, so that no two ranks write what is kept of it."""

from __future__ import annotations

import libcst as cst

from dlrun.port.program.script import Script

_GIVEN = ("sampler", "batch_sampler")
_ONCE = ("None", "SubsetRandomSampler", "SequentialSampler", "RandomSampler", "BatchSampler")


def drawn_once(script: Script) -> bool:
    """Tell whether all samplers of the script are known to draw no sample twice."""
    given = [(a.keyword.value, a.value) for call in script.calls for a in call.args if a.keyword is not None]
    again = any(name == "replacement" and script.code(value) != "False" for name, value in given)
    samplers = [made for name, value in given if name in _GIVEN for made in _made(script, value)]
    return not again and all(_is_once(script, made) for made in samplers)


def _made(script: Script, sampler: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what makes the sampler that a loader is given."""
    return [b.value for b in script.bindings_of(sampler) if b.value is not None] or [sampler]


def _is_once(script: Script, made: cst.BaseExpression) -> bool:
    """Tell whether a sampler is none, or of a class that goes through its samples once."""
    name = script.name_of(made.func) if isinstance(made, cst.Call) else script.code(made)
    return name.rpartition(".")[2] in _ONCE
