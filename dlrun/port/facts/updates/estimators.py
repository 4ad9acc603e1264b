"""Reads what an Estimator trains with: where its model lies, its input functions, its step counts and hooks."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts.models.kinds_tensorflow import TensorFlowKinds, plain
from dlrun.port.facts.updates.train_step_losses import undivided
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, argument, calls_method, dotted, walk

_CUSTOM = ("tensorflow.estimator.Estimator", "tensorflow.contrib.learn.Estimator")
_SPEC = "tensorflow.estimator.TrainSpec"
# The ready-made Estimators that make an optimizer unasked, and by which parameters they are given another one.
_FAMILIES = {
    "DNNLinearCombined": ("linear_optimizer", "dnn_optimizer"),
    "DNN": ("optimizer",),
    "Linear": ("optimizer",),
    "Baseline": ("optimizer",),
}
_NUMPY = ("tensorflow.estimator.inputs.numpy_input_fn", "tensorflow.estimator.inputs.pandas_input_fn")


class Estimators:
    """The Estimators of one script, and the calls that train them; each method answers one question."""

    def __init__(self, script: Script, flow: Flow, kinds: TensorFlowKinds) -> None:
        """Find the calls.

        Raises:
            DlrunError: nothing trains here, or with an optimizer that is out of reach.
        """
        self.script, self.flow, self.kinds = script, flow, kinds
        named = [(c, plain(script.name_of(c.func))) for c in script.calls]
        self.custom = [c for c, name in named if name in _CUSTOM]
        self.ready = [
            c
            for c, name in named
            if name.startswith("tensorflow.estimator.")
            and name.endswith(("Classifier", "Regressor", "Estimator"))
            and name not in _CUSTOM
        ]
        self.configs = [c for c, name in named if name.endswith(".RunConfig")]
        self.trains = [c for c, name in named if name == _SPEC or self._is_train(c)]
        for call, name in named:
            if name.endswith("model_to_estimator"):
                raise DlrunError(
                    f"{script.place(call)}: a Keras model that becomes an Estimator. Nothing was written.",
                    "Train it with fit(), which dlrun port knows.",
                )
        if not self.trains:
            raise DlrunError(
                f"{script.name}: an Estimator is made, but train() is not called. Nothing was written.",
                "Port the script that calls train() or train_and_evaluate().",
            )
        for call in self.ready:
            if not self.optimizers_of(call) and not self.named_of(call):
                raise DlrunError(
                    f"{script.place(call)}: this Estimator makes its optimizer itself, out of reach. "
                    "Nothing was written.",
                    "Give it one: optimizer=tf.keras.optimizers.legacy.Adagrad(learning_rate=0.05), and port again.",
                )

    def _is_train(self, call: cst.Call) -> bool:
        if not calls_method(call, "train") or not isinstance(call.func, cst.Attribute) or not call.args:
            return False
        return any(o.node in (*self.custom, *self.ready) for o in self.flow.origins(call.func.value)) or any(
            word in dotted(call.func.value).lower() for word in ("estimator", "classifier", "regressor")
        )

    def owns(self, call: cst.Call) -> bool:
        """Tell whether ``call`` is a method of one of the Estimators."""
        held = call.func.value if isinstance(call.func, cst.Attribute) else None
        return held is not None and any(o.node in (*self.custom, *self.ready) for o in self.flow.origins(held))

    def undivided(self) -> tuple[cst.CSTNode, str] | None:
        """Return what keeps ranks from taking a part of each batch, and why; None where nothing does."""
        for call in self.custom:
            given = argument(call, "model_fn", 0)
            model = self.flow.definition(given) if given is not None else None
            if not isinstance(model, cst.FunctionDef):
                return call, "its model is made out of sight"
            names = [p.name.value for p in model.params.params[:2]]
            if (found := undivided(self.kinds, model, names)) is not None:
                return found[0], f"here is a model {found[1]}"
        for call in self.ready:
            old = not self.script.name_of(call.func).startswith("tensorflow.estimator.")
            if old or argument(call, "loss_reduction") is not None:
                return call, "the loss of this Estimator may be a sum over the samples"
        for call in self.trains:
            value = argument(call, "input_fn", 0)
            for made in [o.node for o in self.flow.origins(value)] if value is not None else []:
                known = isinstance(made, cst.Call) and plain(self.script.name_of(made.func)) in _NUMPY
                shuffles = argument(made, "shuffle", -1) if isinstance(made, cst.Call) and known else None
                if known and (shuffles is None or dotted(shuffles) != "False"):
                    return made, "each rank would shuffle in an order of its own"
        return None

    def optimizers_of(self, call: cst.Call) -> list[cst.Call]:
        """Return the calls that make the optimizers of a ready-made Estimator."""
        given = [a.value for a in call.args if a.keyword is not None and a.keyword.value.endswith("optimizer")]
        given = [g.body if isinstance(g, cst.Lambda) else g for g in given]
        found = [o.node for g in given for o in self.flow.origins(g)]
        return [f for f in found if isinstance(f, cst.Call) and self.kinds.of_call(f) == "optimizer"]

    def named_of(self, call: cst.Call) -> list[tuple[str, cst.SimpleString | None]]:
        """Return the optimizers that a ready-made Estimator makes of a string it is given, or (None) unasked."""
        kind = plain(self.script.name_of(call.func)).rsplit(".", 1)[-1]
        parameters = next((names for family, names in _FAMILIES.items() if kind.startswith(family)), ())
        plainly = [a for a in call.args if a.keyword is None]
        if len(plainly) > 2 or any(a.star for a in call.args) or (len(parameters) == 2 and plainly):
            return []  # it may be among them
        given = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
        values = [(name, given.get(name)) for name in parameters]
        return [(n, v) for n, v in values if v is None or isinstance(v, cst.SimpleString)]

    def folders(self) -> Iterator[cst.BaseExpression]:
        """Yield the folders of the models."""
        for call in self.custom:
            if (value := argument(call, "model_dir", 1)) is not None:
                yield value
        for call in (*self.ready, *self.configs):
            if (value := argument(call, "model_dir")) is not None:
                yield value

    def counts(self) -> Iterator[cst.BaseExpression]:
        """Yield the numbers of steps to train."""
        for call in self.trains:
            spec = plain(self.script.name_of(call.func)) == _SPEC
            for keyword, position in (("steps", -1 if spec else 2), ("max_steps", 1 if spec else 3)):
                value = argument(call, keyword, position)
                if value is not None and dotted(value) != "None":
                    yield value

    def inputs(self) -> Iterator[tuple[str, cst.BaseExpression]]:
        """Yield what is to be shared: ("data", a data set or array) or ("function", a function that returns one).

        Or ("handed", a call, or an input function) where a function that evaluation calls, too, makes the iterator.
        """
        for call in self.trains:
            value = argument(call, "input_fn", 0)
            if value is None:
                continue
            if isinstance(value, cst.Lambda):
                yield from self._returned(value.body)
                continue
            for origin in self.flow.origins(value):
                made = origin.node
                if isinstance(made, cst.Call) and plain(self.script.name_of(made.func)) in _NUMPY:
                    arrays = [argument(made, "x", 0), argument(made, "y", 1)]
                    yield from (("data", a) for a in arrays if a is not None and dotted(a) != "None")
                    break
            else:
                yield from self._of_function(value)

    def parameters(self, value: cst.BaseExpression) -> list[str]:
        """Return what an Estimator passes to the input function ``value``: those of params, mode, config it takes."""
        found = [self.flow.definition(value), *(self.flow.definition(o.node) for o in self.flow.origins(value))]
        function = next((f for f in found if isinstance(f, cst.FunctionDef)), None)
        names = [p.name.value for p in function.params.params] if function is not None else []
        for made in (o.node for o in self.flow.origins(value)):
            if isinstance(made, cst.Call) and self.script.name_of(made.func) == "functools.partial":
                given = [arg.keyword.value if arg.keyword is not None else "" for arg in made.args[1:]]
                names = [name for name in names[given.count("") :] if name not in given]
        return [name for name in names if name in ("params", "mode", "config")]

    def _of_function(self, value: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
        function = self.flow.definition(value)
        uses = [n for n in self.script.of(cst.Name) if self.flow.definition(n) is function]
        alone = isinstance(function, cst.FunctionDef) and len([u for u in uses if u is not function.name]) == 1
        makers = [up for up in self.script.above(function) if isinstance(up, cst.FunctionDef)] if function else []
        alone = alone and all(len(self.flow.callers(maker)) < 2 for maker in makers)  # no other asks it for one
        if alone and isinstance(function, cst.FunctionDef):
            iterated = list(self._iterated(function))
            returned = iterated or self.flow.returns(function)
            whole = next((r for r in returned if not iterated and self._is_whole(r)), None)
            if whole is not None:
                raise DlrunError(
                    f"{self.script.place(whole)}: {function.name.value}() returns tensors, not a data set: all of them "
                    "are one batch, which every step takes whole. Nothing was written.",
                    "Make batches of them: tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).repeat().batch(32)",
                )
            if returned:
                for each in returned:
                    yield from [("data", each)] if iterated else self._returned(each)
                return
        inside = isinstance(function, cst.FunctionDef) and bool(self.iterated_in(function))
        yield "handed" if inside else "function", value

    def _returned(self, value: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
        """Yield what is to be shared of ``value``, which an input function returns."""
        function = self.maker(value)
        datasets = self.iterated_in(function) if function is not None else []
        if function is None or not datasets:
            yield "data", value
        elif len(self.flow.callers(function)) == 1:
            yield from (("data", each) for each in datasets)
        else:
            yield "handed", value

    def maker(self, value: cst.BaseExpression) -> cst.FunctionDef | None:
        """Return the function of the program that ``value`` calls, or is; None where it is none, or one of several."""
        found = self.flow.targets(value) if isinstance(value, cst.Call) else [self.flow.definition(value)]
        return found[0] if len(found) == 1 and isinstance(found[0], cst.FunctionDef) else None

    def iterated_in(self, function: cst.FunctionDef) -> list[cst.BaseExpression]:
        """Return the data sets of which ``function`` itself makes iterators."""
        return list(self._iterated(function, 0))

    def _iterated(self, function: cst.FunctionDef, depth: int = 3) -> Iterator[cst.BaseExpression]:
        """Yield the data sets of which ``function`` makes iterators, itself or in functions that it alone calls."""
        for call in (n for n in walk(function.body) if isinstance(n, cst.Call)):
            if plain(self.script.name_of(call.func)).startswith("tensorflow.data.make_") and call.args:
                yield call.args[0].value
            elif isinstance(call.func, cst.Attribute) and call.func.attr.value.startswith("make_"):
                yield call.func.value
            for target in self.flow.targets(call) if depth else ():
                if len(self.flow.callers(target)) == 1:
                    yield from self._iterated(target, depth - 1)

    def _is_whole(self, returned: cst.BaseExpression) -> bool:
        """Tell whether ``returned`` is made of tensors that hold arrays: ``tf.constant(x), tf.constant(y)``."""
        if isinstance(returned, cst.Tuple):
            return any(self._is_whole(e.value) for e in returned.elements)
        if isinstance(returned, cst.Dict):
            return any(self._is_whole(e.value) for e in returned.elements if isinstance(e, cst.DictElement))
        made = [o.node for o in self.flow.origins(returned)]
        if any(isinstance(n, (cst.Tuple, cst.Dict)) and n is not returned and self._is_whole(n) for n in made):
            return True
        names = [plain(self.script.name_of(n.func)) for n in made if isinstance(n, cst.Call)]
        return any(name in ("tensorflow.constant", "tensorflow.convert_to_tensor") for name in names)
