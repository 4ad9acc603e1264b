"""What stands in for dl_comm's functions in a run takes what they take."""

from __future__ import annotations

import importlib
import inspect

import pytest


@pytest.mark.parametrize(
    ("library", "face", "tracer", "owner"),
    [
        ("torch", "dl_comm.torch", "averaging", "Averaging"),
        ("tensorflow", "dl_comm.tensorflow", "tensorflow_face", "Face"),
    ],
)
def test_a_call_that_is_followed_may_have_all_its_arguments(library: str, face: str, tracer: str, owner: str) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    module = importlib.import_module(f"dlrun.verify.tracer.{tracer}")
    functions = importlib.import_module(face)
    for name in module.FOLLOWED:
        function, wrapper = getattr(functions, name, None), getattr(getattr(module, owner), f"_{name}", None)
        if function is None or wrapper is None:
            continue
        given = inspect.signature(function).parameters.values()
        named = {p.name: None for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        first = next((p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD), "")
        named.pop(first, None)  # each calls it otherwise
        inspect.signature(wrapper).bind(None, None, None, **named)
