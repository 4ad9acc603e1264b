"""What the ranks make one of: numbers, arrays and the tensors of what Keras computes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dl_comm.keras.backend import KERAS_3, backend
from dl_comm.keras.together import average_statistics
from dl_comm.reduction.calls import Reductions
from dl_comm.reduction.leaves import Tensors
from dl_comm.reduction.metrics import is_metric


class _JaxTensors(Tensors):
    """Arrays of jax."""

    def holds(self, value: Any) -> bool:
        """Tell whether it is one."""
        import jax

        return isinstance(value, jax.Array)

    def described(self, value: Any) -> tuple[str, str]:
        """Return its dtype and place."""
        return value.dtype.name, ""

    def array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return what it holds."""
        array = np.asarray(value)
        return np.array(array, dtype=np.float32) if array.dtype.kind == "V" else np.array(array, order="C")

    def tensor(self, array: np.ndarray[Any, Any], dtype: str, place: str, like: Any) -> Any:
        """Return one that holds the array."""
        import jax

        return jax.numpy.asarray(array, dtype=dtype)

    def mean_dtype(self, dtype: str) -> str:
        """Return the dtype of the means of integers."""
        return "float32"


class _KerasTensors(Tensors):
    """Those of the backend, and Keras's variables, of which tensors are made."""

    _of: Tensors | None = None

    @property
    def own(self) -> Tensors:
        """Those of the backend alone."""
        if self._of is None:
            if backend() == "torch":
                from dl_comm.torch.reducing import TorchTensors

                self._of = TorchTensors()
            elif backend() == "jax":
                self._of = _JaxTensors()
            else:
                from dl_comm.tensorflow.reducing import TensorFlowTensors

                self._of = TensorFlowTensors()
        return self._of

    def _bare(self, value: Any) -> Any:
        return value.value if KERAS_3 and _is_variable(value) else value

    def holds(self, value: Any) -> bool:
        """Tell whether it is one."""
        return _is_variable(value) or self.own.holds(value)

    def described(self, value: Any) -> tuple[str, str]:
        """Return its dtype and place."""
        return self.own.described(self._bare(value))

    def array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return what it holds."""
        return self.own.array(self._bare(value))

    def tensor(self, array: np.ndarray[Any, Any], dtype: str, place: str, like: Any) -> Any:
        """Return one that holds the array."""
        return self.own.tensor(array, dtype, place, None if like is None else self._bare(like))

    def mean_dtype(self, dtype: str) -> str:
        """Return the dtype of the means of integers."""
        return self.own.mean_dtype(dtype)


def _is_variable(value: Any) -> bool:
    return hasattr(value, "assign") and hasattr(value, "shape") and hasattr(value, "dtype")


class _KerasReductions(Reductions):
    """The reductions of numbers and tensors, and the means of what models keep."""

    def average(self, *values: Any, over: Any = None) -> Any:
        """Return the means."""
        models = {id(value): value for value in values if hasattr(value, "_flatten_layers") and not is_metric(value)}
        if models and not self.leaves_alone(over, repeats=False):
            for model in models.values():
                average_statistics(model)
        if not models:
            return super().average(*values, over=over)
        others = [value for value in values if id(value) not in models]
        means = super().average(*others, over=over) if others else ()
        found = iter(means if len(others) > 1 else (means,))
        made = tuple(value if id(value) in models else next(found) for value in values)
        return made[0] if len(made) == 1 else made

    average.__doc__ = f"""{Reductions.average.__doc__.rstrip() if Reductions.average.__doc__ else ""}

        Of a model the moving statistics of batch normalization are averaged, in place, before the ranks evaluate or
        save it in a loop by hand; ``fit`` of a model that is distributed does so by itself.
        """

    def exchanged(self, values: Sequence[Any], op: str) -> Sequence[Any]:
        """Reduce; tensors of a graph of TensorFlow's by an op of it."""
        if backend() == "tensorflow":
            from dl_comm.tensorflow.reducing import TensorFlowReductions

            return TensorFlowReductions(self.tensors).exchanged(values, op)
        return super().exchanged(values, op)


_reductions = _KerasReductions(_KerasTensors())
average, gather, total = _reductions.average, _reductions.gather, _reductions.total
maximum, minimum = _reductions.maximum, _reductions.minimum
