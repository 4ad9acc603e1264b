"""What stands in the way of porting a PyTorch script: nothing in it trains, or a library does out of its sight."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts.torch import Gradients
from dlrun.port.inputs import looked_at
from dlrun.port.program.local import LIBRARIES
from dlrun.port.program.scopes import absolute
from dlrun.port.program.script import Script
from dlrun.port.refusals import imported

_FITS = re.compile(r"\.(fit|learn)$|Trainer\.train$|^pyro\.infer\.\w+\.step$")
_MINIMIZES = re.compile(r"^scipy\.optimize\.(minimize|fmin\w*|basinhopping|least_squares|differential_evolution)$")
_MOST, _LONGEST = 100, 1_000_000  # files beside a module that are looked into, and bytes of one


def uncalled(script: Script, function: cst.FunctionDef) -> DlrunError:
    """Return the error for a training function that nothing calls: this file is a module of another script."""
    return DlrunError(
        f"{script.place(function)}: nothing in this file calls {function.name.value}(), which trains.", rather(script)
    )


def rather(script: Script) -> str:
    """Return what to port in place of a module: the files beside it that import it, if there are some."""
    module = Path(script.name).stem
    said = re.compile(rf"^\s*(from|import)\s[^#\n]*\b{re.escape(module)}\b".encode(), re.MULTILINE)
    beside = script.home.folder / script.home.inside
    files = sorted(beside.glob("*.py"))[:_MOST] if beside.is_absolute() else []
    files = [f for f in files if f.stem not in (module, "__init__") and f.stat().st_size < _LONGEST]
    found = [f.name for f in files if said.search(f.read_bytes())]
    if len(found) == 1:
        return f"Port {found[0]}, which imports it: dlrun port {found[0]} --out-dir FOLDER takes this file along."
    which = f" ({', '.join(found[:4])} import it)" if found else ""
    return (
        f"Port the script that calls it{which}: dlrun port THAT_SCRIPT --out-dir FOLDER follows its imports "
        "to this file."
    )


def no_weights(gradients: Gradients) -> DlrunError | None:
    """Return the error for a script that changes what a network looks at, by the gradient of that; None of others."""
    if (node := looked_at(gradients)) is None:
        return None
    return DlrunError(
        f"{gradients.script.place(node)}: takes the gradient of {node.value}, which goes into a network: it changes "
        "what the network looks at (an attack, a picture), and trains no weights. Nothing was written.",
        "Give each rank samples of its own: dlrun launch -n 4 SCRIPT, with the samples chosen by the rank.",
    )


def no_loop(gradients: Gradients) -> DlrunError:
    """Return the error for a script in which nothing trains: what was looked for, and where."""
    script = gradients.script
    if (error := no_weights(gradients)) is not None:
        return error
    if (found := _in_a_library(gradients)) is not None:
        call, library = found
        return DlrunError(
            f"{script.place(call)}: {script.code(call.func)}() trains inside {library}: there is no loop to port here. "
            "Nothing was written.",
            f"If {library} runs on many ranks by torch.distributed, dlrun launch --torchrun -n 2 SCRIPT starts it as "
            "it is; or write the loop in the script: loss.backward(), optimizer.step().",
        )
    others = [file for file in script.files.values() if file != script.name]
    looked = f"Looked for `optimizer.step()` and for updates from `.grad` in {len(script.calls)} calls"
    if others:
        shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
        looked += f", here and in what is used of {shown}"
    if gradients.backwards:
        place = script.place(gradients.backwards[0])
        return DlrunError(
            f"{script.name}: gradients are computed ({place}) but no step that uses them was found.",
            f"{looked}; the update may be in another file: port that file. {missing(script)}".strip(),
        )
    return nothing_trains(
        script,
        "no backward pass and no optimizer step",
        f"{looked}; the loop may be in a module that this file imports: port that file.",
    )


def nothing_trains(script: Script, what: str, looked: str) -> DlrunError:
    """Return the error for a script without the training that ``what`` says, and that was ``looked`` for."""
    fit = next((c for c in script.calls if _MINIMIZES.search(script.name_of(c.func))), None)
    if fit is not None:
        return DlrunError(
            f"{script.place(fit)}: {script.code(fit.func)}() trains out of sight, where no rank can average. Nothing "
            "was written.",
            "Write a loop with an optimizer of the framework's own.",
        )
    other = next((node for target, node in imported(script) if target.split(".")[0] == "tf_keras"), None)
    if other is not None:
        return DlrunError(
            f"{script.place(other)}: trains with tf_keras, Keras 2 beside Keras 3, which dl_comm does "
            "not know. Nothing was written.",
            "Import keras in its place, or tensorflow.keras.",
        )
    return DlrunError(f"{script.name}: no training loop: {what}.", f"{looked} {missing(script)}".strip())


def _in_a_library(gradients: Gradients) -> tuple[cst.Call, str] | None:
    """Return the call that trains what a foreign library made, and that library: ``svi.step(x)``, ``agent.learn(9)``.

    A module's own ``train()`` only sets its mode; one that is told more than that trains.
    """
    script = gradients.script
    for call in script.calls:
        if not isinstance(call.func, cst.Attribute):
            continue
        what, told = call.func.attr.value, len(call.args) > 1 or any(arg.keyword for arg in call.args)
        for origin in gradients.flow.origins(call.func.value):
            maker = script.name_of(origin.node.func) if isinstance(origin.node, cst.Call) else ""
            foreign = maker.partition(".")[0] not in {"", "builtins", "torch"} | sys.stdlib_module_names
            if foreign and (_FITS.search(f"{maker}.{what}") or (what == "train" and told)):
                return call, maker.partition(".")[0]
    return None


def missing(script: Script) -> str:
    """Return what the program imports that is neither of its project, as it lies here, nor installed; or nothing."""
    found: dict[str, str] = {}
    for target, node in imported(script):
        scope = script.scopes[node].root
        full = absolute(target, scope.package)
        top = full.split(".")[0]
        known = top in LIBRARIES | sys.stdlib_module_names | {"", "__main__"}
        if known or not script.root.locals.keys().isdisjoint((full, full.rpartition(".")[0])):
            continue
        ours = target.startswith(".") or any(name.split(".")[0] == top for name in script.root.locals)
        if ours or importlib.util.find_spec(top) is None:
            found.setdefault(full.rpartition(".")[0] or full, script.place(node))
    if not found:
        return ""
    shown = ", ".join(f"{name} ({place})" for name, place in list(found.items())[:4])
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return (
        f"The program imports what was found neither in its project nor installed: {shown}{more}. What it takes "
        "from there was not seen: port it where all of it lies."
    )
