"""Why each rank evaluates all of the batches: what a model draws, keeps or is called for batch by batch."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import keras

from dl_comm.keras.backend import KERAS_3, stateful_layers
from dl_comm.keras.folding import KERAS, codes_of, folds, names_in, own_functions, parts_of

_STEPS = {"evaluate": ("test_step", "compute_metrics"), "predict": ("predict_step",)}
_DRAWS = {"normal", "uniform", "bernoulli", "sample", "shuffle", "categorical", "randint", "choice", "rand"}
_ASIDE = ("__init__", "build", "train_step", "get_config", "from_config", "on_epoch_end", "on_epoch_begin", "__len__")
# The settings of Keras 2's generators of images that draw for each image.
_AUGMENTS: tuple[str, ...] = (
    "rotation_range",
    "width_shift_range",
    "height_shift_range",
    "brightness_range",
    "shear_range",
)
_AUGMENTS += ("channel_shift_range", "horizontal_flip", "vertical_flip")


def reason(model: Any, what: str) -> str:
    """Return why "evaluate" or "predict" of ``model`` is not shared, "" where nothing is known against it."""
    if layers := stateful_layers(model):
        return f"{layers[0].name} hands its states on from batch to batch"
    if what == "evaluate":
        for metric in _metrics(model):
            if folds(metric) is None:
                return f"it is not known how {type(metric).__name__} comes together over the ranks (fold_over_ranks)"
    for owner in (model, *model._flatten_layers(include_self=False)):
        if why := _of_layer(owner):
            return why
    return ""


def has_own_steps(model: Any, what: str) -> bool:
    """Tell whether what a batch gives is a function's of the script's own."""
    return any(getattr(type(model), name, None) is not getattr(keras.Model, name, None) for name in _STEPS[what])


def looks_at_batches(callbacks: list[Any]) -> bool:
    """Tell whether callbacks of the script's own are called for each batch that is evaluated or predicted."""
    hooks = [f"on_{what}_batch_{when}" for what in ("test", "predict") for when in ("begin", "end")]
    plain = keras.callbacks.Callback
    return any(
        hook in vars(callback) or getattr(type(callback), hook, None) is not getattr(plain, hook)
        for callback in callbacks
        for hook in hooks
        if not _of_keras(callback) or hook in vars(callback)
    )


def draws_batches(sequence: Any) -> str:
    """Return how the samples of a Sequence are other ones each time; "" where they are not known to be."""
    images = getattr(sequence, "image_data_generator", None)
    if images is not None and (any(getattr(images, name, None) for name in _AUGMENTS) or _zooms(images)):
        return "its images are changed at random"
    for name, function in own_functions(type(sequence)):
        if name not in _ASIDE and draws(function):
            return f"{type(sequence).__name__}.{name}() draws at random"
    return ""


def _zooms(images: Any) -> bool:
    zoom = getattr(images, "zoom_range", None)
    return zoom is not None and list(zoom) != [1, 1]


def _of_keras(thing: Any) -> bool:
    return type(thing).__module__.partition(".")[0] in KERAS


def _metrics(model: Any) -> Iterator[Any]:
    """Yield the metrics of a model, and those that it will have once it is built."""
    yield from (m for m in parts_of(getattr(model, "metrics", ())) if isinstance(m, keras.metrics.Metric))
    holder = getattr(model, "_compile_metrics", None) if KERAS_3 else getattr(model, "compiled_metrics", None)
    todo = [getattr(holder, name, None) for name in ("_user_metrics", "_user_weighted_metrics", "_metrics")]
    while todo:
        one = todo.pop()
        if isinstance(one, keras.metrics.Metric):
            yield one
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, (list, tuple)):
            todo += one


def _of_layer(layer: Any) -> str:
    """Return how what a layer, or the model, gives for one batch depends on others, or on chance."""
    for node in getattr(layer, "_inbound_nodes", ()):
        given = getattr(node, "call_kwargs", None) or getattr(getattr(node, "arguments", None), "kwargs", None) or {}
        if given.get("training") is True:
            return f"{layer.name} is in training mode"
    if isinstance(layer, keras.layers.Lambda):
        return f"{layer.name} draws at random" if draws(layer.function) else ""
    if _of_keras(layer) or isinstance(layer, keras.metrics.Metric):
        return ""
    kind: Any = type(layer)
    return _of_class(kind)


@cache
def _of_class(kind: type) -> str:
    for name, function in own_functions(kind):
        if name in _ASIDE:
            continue
        if draws(function):
            return f"{kind.__name__}.{name}() draws at random"
        if _trains(function):
            return f"{kind.__name__}.{name}() calls layers in training mode"
        if any(used.startswith("assign") for used in names_in(function)):
            return f"{kind.__name__}.{name}() keeps a state"
    return ""


def _trains(function: Any) -> bool:
    """Tell whether a function passes ``training=True``; where its source is not known, whether it may."""
    words = {word for code in codes_of(function) for held in code.co_consts if isinstance(held, tuple) for word in held}
    if "training" not in words:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return True
    passed = [word.value for word in ast.walk(tree) if isinstance(word, ast.keyword) and word.arg == "training"]
    return any(isinstance(value, ast.Constant) and value.value is True for value in passed)


def draws(function: Any) -> bool:
    """Tell whether a function names what draws random numbers."""
    names = names_in(function)
    return any(name in _DRAWS or "random" in name.lower() for name in names) or {"nn", "dropout"} <= names
