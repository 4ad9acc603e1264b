"""Which models a Keras script trains: those that it compiles, and those that it loads from a file as they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts.numbers.computed import reaching
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, argument, calls_method, dotted
from dlrun.port.untrained import nothing_trains

FITS = ("fit", "fit_generator")
_OF_FITS = {"epochs", "batch_size", "steps_per_epoch", "callbacks", "validation_data"}  # keywords of Keras alone


def trains(flow: Flow) -> list[cst.Call]:
    """Return the calls that train a model: ``fit()``, ``fit_generator()``, ``train_on_batch()``."""
    calls = [c for c in flow.script.calls if calls_method(c, *FITS, "train_on_batch")]
    return [c for c in calls if not is_foreign(flow.script, flow, c) and not is_holder(flow, c)]


def beside_loops(flow: Flow) -> list[cst.Call]:
    """Return the calls that train a compiled model in a script which also trains in loops of its own.

    A model that is compiled out of sight is known by what ``fit()`` is told.
    """
    compiled = [c for c in flow.script.calls if compiles(flow.script, c)]
    found = [c for c in trains(flow) if not flow.targets(c)]
    return [
        c
        for c in found
        if not _OF_FITS.isdisjoint(a.keyword.value for a in c.args if a.keyword is not None)
        or any(is_trained(flow.script, made, [c]) for made in compiled)
    ]


def loaded(flow: Flow, compiled: Sequence[cst.Call], trained: Sequence[cst.Call]) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield where models get their names that are trained as a file had them, compiled, and these names."""
    done: set[cst.CSTNode] = set()
    for call in trained:
        model = call.func.value  # type: ignore[attr-defined]
        bindings = flow.script.bindings_of(model)
        if isinstance(model, cst.Name):
            bindings = reaching(flow.script, model, bindings)
        elif isinstance(model, cst.Attribute) and dotted(model.value) == "self":
            owner = flow.script.class_of(model)
            homes = [flow.script.function_of(call), flow.method(owner, "__init__") if owner is not None else None]
            bindings = flow.script.kept_bindings(model)
            bindings = [b for b in bindings if flow.script.function_of(b.node) in homes]  # others may only predict
        for binding in bindings:
            made = [o.node for o in flow.origins(binding.value)] if binding.value is not None else []
            again = any(_compiled_between(flow.script, c, binding.node, call) for c in compiled)
            if binding.node not in done and any(_loads(flow.script, n) for n in made) and not again:
                done.add(binding.node)
                yield binding.node, flow.script.code(model)


def _loads(script: Script, made: cst.CSTNode) -> bool:
    """Tell whether ``made`` is a model as it was saved, with its optimizer."""
    if not isinstance(made, cst.Call) or not script.name_of(made.func).endswith(".load_model"):
        return False
    plain = argument(made, "compile", 2)
    return "keras" in script.name_of(made.func) and (plain is None or dotted(plain) != "False")


def _compiled_between(script: Script, compiled: cst.Call, begun: cst.CSTNode, trained: cst.Call) -> bool:
    """Tell whether ``compiled`` is sure to run, or in another function, between ``begun`` and ``trained``."""
    if receiver(script, compiled) != receiver(script, trained):
        return False
    if script.function_of(compiled) is not script.function_of(begun):
        return True
    block = script.suite(script.statement_of(compiled))
    sure = script.inside(begun, block) or script.inside(trained, block)
    home = script.function_of(trained) is script.function_of(begun)
    before = not home or script.order[compiled] < script.order[trained]
    return sure and script.order[begun] < script.order[compiled] and before


def receiver(script: Script, call: cst.Call) -> str:
    """Return the source of what a method is called on."""
    return script.code(call.func.value) if isinstance(call.func, cst.Attribute) else ""


def compiles(script: Script, call: cst.Call) -> bool:
    """Tell whether ``call`` is a model's compile(), not re.compile or super().compile in a class."""
    if not calls_method(call, "compile"):
        return False
    if script.name_of(call.func) and not script.name_of(call.func).startswith("."):
        return False
    return bool(dotted(call.func)) and isinstance(script.parents.get(call), cst.Expr)


def is_trained(script: Script, compiled: cst.Call, trained: list[cst.Call]) -> bool:
    """Tell whether the model is one that is trained: by its name, or because other functions may train it."""
    here = [c for c in trained if script.function_of(c) is script.function_of(compiled)]
    return not here or receiver(script, compiled) in {receiver(script, c) for c in trained}


def is_foreign(script: Script, flow: Flow, call: cst.Call) -> bool:
    """Tell whether the receiver of fit() is no model: a tokenizer, a scaler, a generator of images."""
    assert isinstance(call.func, cst.Attribute)
    for origin in flow.origins(call.func.value):
        if isinstance(origin.node, cst.Call):
            made = script.name_of(origin.node.func)
            if made.startswith("sklearn.") or "preprocessing" in made or made.endswith(("Tokenizer", "Tuner")):
                return True
    last = dotted(call.func.value).rsplit(".", 1)[-1].lower()
    return last.endswith(("datagen", "tokenizer", "scaler", "encoder_", "generator_", "vectorizer"))


def is_holder(flow: Flow, call: cst.Call) -> bool:
    """Tell whether the receiver is no model itself, but an object of the script's own that holds one."""
    classes = flow.classes(call.func.value) if isinstance(call.func, cst.Attribute) else []
    return bool(classes) and all(map(flow.is_plain, classes))


def uncalled(flow: Flow, trained: Sequence[cst.Call]) -> cst.FunctionDef | None:
    """Return a function around one of the calls ``trained``, where nothing in the program runs any of these."""
    functions = [flow.script.function_of(call) for call in trained]
    if flow.script.acts or any(_starts(flow, function) for function in functions):
        return None
    return next((f for f in functions if isinstance(f, cst.FunctionDef)), None)


def _starts(flow: Flow, function: cst.CSTNode, depth: int = 9) -> bool:
    """Tell whether a line outside of all functions leads to ``function``."""
    callers = flow.callers(function) if isinstance(function, cst.FunctionDef) and depth else []
    return not isinstance(function, cst.FunctionDef) or any(
        _starts(flow, flow.script.function_of(call), depth - 1) for call in callers
    )


def nothing(script: Script, compiled: list[cst.Call], trained: list[cst.Call]) -> DlrunError:
    """Return the error that says what a script lacks of what is to be ported."""
    place = next((script.place(call) for call in (*compiled, *trained)), "")
    if compiled:
        return DlrunError(
            f"{place}: the model is compiled here but no fit() or train_on_batch() was found.",
            "Port the script that trains it.",
        )
    if trained:
        return DlrunError(
            f"{place}: the model trained here is compiled elsewhere: nothing was written.",
            "Compile it in this file, or port the file that compiles it.",
        )
    return nothing_trains(
        script, "no model.compile() with a model.fit()", f"Looked for them in {len(script.calls)} calls."
    )
