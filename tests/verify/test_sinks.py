"""Where a script shows, saves and decides, and which of it the runs have not come to."""

from __future__ import annotations

import ast
import io
import logging
import pickle
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch
from by_hand import event, run

from dlrun.verify.checks.reached import unshown
from dlrun.verify.tracer.conditions import REACHED, WATCH, watched
from dlrun.verify.tracer.files import Errors, _note_stored, _plain_numbers
from dlrun.verify.tracer.sinks import marked, sinks

SCRIPT = '''"""Trains."""
import logging, math, torch
def report(x):
    print(x)
def unused(x):
    print(x)
for step in range(9):
    loss = math.log(2 + step)
    if step == 8:
        logging.info("%f", loss)
    elif step == 7:
        torch.save(loss, "a.pt")
    try:
        report(loss)
    except ValueError as error:
        print(error)
    if loss > 100:
        print(loss)
        raise SystemExit
    if args.verbose:
        print(loss)
print("done")
'''


def test_calls_that_show_or_save_are_found_and_those_of_errors_and_options_are_not() -> None:
    found = [(sink.first, sink.name) for sink in sinks(ast.parse(SCRIPT))]
    assert found == [(4, "print()"), (10, "logging.info()"), (12, "torch.save()")]


def test_a_mark_before_each_tells_when_it_is_come_to_and_changes_nothing_else() -> None:
    tree = ast.parse(
        "def f(x):\n    'Doc.'\n    print(x)\n    return x\nif f(1) > 2:\n    print(2, f(2))\nelse:\n    g = f(3)\n"
    )
    marked(tree, "watch", "reached")
    seen: list[tuple[str, int]] = []
    space = {"watch": lambda kind, line, _: seen.append((kind, line)), "print": lambda *_: None}
    exec(compile(ast.fix_missing_locations(tree), "t.py", "exec"), space)
    assert seen == [("reached", 3), ("reached", 3)]
    assert (space["g"], space["f"].__doc__) == (3, "Doc.")


def test_what_no_run_has_come_to_is_listed_with_its_lines() -> None:
    text = "if loss < best:\n    best = loss\n    torch.save(best, 'a.pt')\nprint(best)\n"
    check = unshown(text, "t.py", [run([event("reached", line=4)])])
    assert check is not None
    assert check.status == "open"
    assert check.finding.startswith("if loss < best at t.py:1, torch.save() at t.py:3: what is shown, saved or decided")
    choice = event("choice", "t.py:1", what="loss < best", values={})
    assert unshown(text, "t.py", [run([choice, event("reached", line=3)]), run([event("reached", line=4)])]) is None


def test_what_is_computed_every_so_many_iterations_of_the_training_is_to_be_come_to() -> None:
    text = """for width in widths:
    if width % 2:
        width += 1
for step, batch in enumerate(data):
    optimizer.step()
    if step % 100 == 99:
        for mean, weight in zip(means, weights):
            mean += (weight - mean) / 2
    if "%d" % step in known:
        known.remove(step)
print(means)
"""
    check = unshown(text, "t.py", [run([event("reached", line=11)])])
    assert check is not None
    assert check.finding.startswith("what comes if step % 100 == 99 at t.py:8: what is shown")
    assert unshown(text, "t.py", [run([event("reached", line=8), event("reached", line=11)])]) is None
    seen: list[int] = []
    code = watched(text.replace("100", "2").replace("99", "1"), "t.py")
    given = {"widths": [], "data": "abcd", "means": [0.0], "weights": [1.0], "known": [], "optimizer": Mock()}
    exec(code, given | {WATCH: lambda kind, of, value, *_: seen.append(of) if kind == REACHED else value})
    assert seen == [8, 8, 11]


def test_of_what_is_saved_the_steps_of_schedules_and_optimizers_are_no_numbers_that_a_script_shows() -> None:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer := torch.optim.SGD([torch.zeros(1)], 0.1), 18)
    saved = {"best": 0.5, "sched": schedule.state_dict(), "opt": optimizer.state_dict()}
    assert list(_plain_numbers("", saved)) == [("['best']", 0.5)]
    assert list(_plain_numbers("", optimizer.state_dict())) == []


def test_of_what_is_saved_a_list_is_as_long_as_it_is_however_deep_it_lies() -> None:
    saved = {"history": {"train": {"loss": deque([0.5, 0.25])}}, "model": {"w": torch.zeros(2, 2)}}
    inner = "['history']['train']['loss']"
    assert dict(_plain_numbers("", saved)) == {f"length of {inner}": 2.0, f"{inner}[0]": 0.5, f"{inner}[1]": 0.25}


def test_of_what_is_saved_small_tensors_are_numbers_and_those_of_a_model_are_not() -> None:
    conf, model = torch.tensor([[3, 1], [0, 4]]), torch.nn.Linear(2, 1)
    saved = {"conf": conf, "best": torch.tensor(0.5), "model": model.state_dict(), "large": -torch.ones(99)}
    names = ["['conf'][0][0]", "['conf'][0][1]", "['conf'][1][0]", "['conf'][1][1]", "['best']"]
    expected = dict(zip(names, [3.0, 1.0, 0.0, 4.0, 0.5], strict=True))
    large = {"length of ['large']": 99.0, "mean magnitude of ['large']": 1.0}
    assert dict(_plain_numbers("", saved)) == expected | large
    arrays = {"loss": torch.tensor([0.5, 0.25]).numpy()}  # NumPy's are no model's
    assert dict(_plain_numbers("", arrays)) == {"length of ['loss']": 2.0, "['loss'][0]": 0.5, "['loss'][1]": 0.25}
    assert list(_plain_numbers("", torch.eye(2).to_sparse())) == []


def test_of_what_is_saved_a_dict_of_curves_is_no_model_and_an_array_of_objects_holds_what_they_do() -> None:
    curves, found = {"loss": [0.5, 0.25]}, {"length of ['loss']": 2.0, "['loss'][0]": 0.5, "['loss'][1]": 0.25}
    tensors = {name: torch.tensor(curve) for name, curve in curves.items()}
    assert dict(_plain_numbers("", tensors)) == dict(_plain_numbers("", np.array(curves, dtype=object))) == found


def test_what_is_shown_where_the_machine_has_more_devices_is_left_aside_and_what_else_is_done_is_not() -> None:
    text = """import torch
if torch.cuda.device_count() > 1 and args.multi:
    print(torch.cuda.device_count())
else:
    print(model)
if not torch.cuda.is_available():
    print(device)
if args.evaluate:
    print(accuracy)
else:
    torch.save(model, "a.pt")
if count() > 1:
    print(count)
"""
    assert [sink.first for sink in sinks(ast.parse(text))] == [5, 11, 13]


def test_what_a_script_writes_to_standard_error_is_shown_and_what_libraries_do_is_not(tmp_path) -> None:
    noted: list[str] = []
    orders = SimpleNamespace(scratch=str(tmp_path))
    recorder: Any = SimpleNamespace(note=lambda kind, text: noted.append(f"{kind} {text}"), orders=orders)
    errors = Errors(recorder, io.StringIO())
    logging.StreamHandler(errors).emit(logging.LogRecord("a", 20, "", 0, "by a library", None, None))
    script = compile("print('loss', 0.5, file=errors)", str(tmp_path / "train.py"), "exec")
    exec(script, {"errors": errors})
    assert noted == ["print loss 0.5"]


def test_what_pytorch_pickles_of_a_tensor_is_no_number_that_is_saved(monkeypatch) -> None:
    noted: list[dict[str, float]] = []
    note: Any = lambda kind, values, kept: noted.append(values)  # noqa: E731
    for owner, name in ((pickle, "dump"), (pickle, "dumps"), (torch, "save")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    _note_stored(SimpleNamespace(inside=1, note=note))  # type: ignore[arg-type]
    pickle.dumps([torch.ones(3), 5])
    pickle.dump([torch.ones(2), 4], io.BytesIO())
    assert [values["[1]"] for values in noted] == [5, 4]
