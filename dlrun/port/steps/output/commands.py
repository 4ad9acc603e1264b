"""Part of step "output": commands that a script hands to the shell, which rank 0 alone runs."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.numbers.texts import spelt
from dlrun.port.program.script import argument
from dlrun.port.steps.output.stamps import once

_SHELLS = re.compile(r"^(os\.system|subprocess\.(run|call|check_call|check_output|Popen))$")
_REMOVES = re.compile(r"^\[?\s*f?[\"']\s*(sudo )?(rm|rmdir)\b")  # the beginning of a command
# Commands that each rank runs for itself: they ask for, or change, what is its own or its node's.
_ASKS = re.compile(
    r"(^|[;&|]\s*)(sudo )?(nvidia-smi|rocm-smi|hostname|ulimit|taskset|clear|cls|nproc|lscpu|free)\b(?![/.])"
)
_ON_NODE = re.compile(r"(^|[\s='\"])(/tmp|/dev/shm|[\w./-]*\bscratch|\$\{?\w*(TMP|SCRATCH)\w*)\b", re.IGNORECASE)
_UPLOADS = re.compile(r"\s(\w+://\S*|[\w.@-]+:\S*)\s*$")  # the last word is on another machine


def text_of(facts: ScriptFacts, call: cst.Call, name: str) -> str:
    """Return the code of the command that ``call``, of what is called ``name``, hands to the shell, if it does."""
    given = _given(call, name)
    return facts.script.code(given) if given is not None else ""


def _given(call: cst.Call, name: str) -> cst.BaseExpression | None:
    return (argument(call, "args", 0) or argument(call, "command")) if _SHELLS.search(name) else None


def _is_own(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether each rank runs the command for itself: it asks for what is its own, or fills a disk of its node."""
    text = spelt(facts.flow, _given(call, name))
    return bool(_ASKS.search(text)) or (bool(_ON_NODE.search(text)) and not _UPLOADS.search(text))


def removes(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, of what is called ``name``, has a shell remove files, and nothing asks how it went."""
    return bool(_REMOVES.search(text_of(facts, call, name))) and isinstance(facts.script.parents[call], cst.Expr)


def acts(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, of what is called ``name``, has a shell do what one process is to do, and asks no more."""
    text = text_of(facts, call, name)
    alone = not _is_own(facts, call, name) or bool(_REMOVES.search(text))
    return bool(text) and alone and isinstance(facts.script.parents[call], cst.Expr)


def waited_for(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether what ``call`` leaves is to be there for all: all ranks come to it once, and to no other after it."""
    if not acts(facts, call, name) or removes(facts, call, name) or not once(facts, call):
        return False
    line = facts.script.statement_of(call)
    block = facts.script.block(line)
    after = block[block.index(line) + 1 :][:1]
    nexts = [n.value for n in after if isinstance(n, cst.Expr) and isinstance(n.value, cst.Call)]
    return not any(acts(facts, each, facts.script.name_of(each.func)) for each in nexts)
