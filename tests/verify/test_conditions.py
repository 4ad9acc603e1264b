"""Which conditions are watched, and that watching them changes nothing."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from textwrap import dedent
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from by_hand import event, run, step

from dlrun.verify.checks.bounds import bounds
from dlrun.verify.checks.ranks import steps
from dlrun.verify.trace import Event
from dlrun.verify.tracer.changes import CHANGE, changing
from dlrun.verify.tracer.conditions import WATCH, choosing, counting, deciding, exiting, watch, watched
from dlrun.verify.tracer.leaving import leaving
from dlrun.verify.tracer.syntax import Loop
from dlrun.verify.tracer.told import Whole


def lines(source: str) -> list[str]:
    source = dedent(source)
    return [source.splitlines()[i - 1].strip() for i in sorted(deciding(ast.parse(source)))]


def test_a_condition_with_a_way_out_of_the_training_loop_is_watched() -> None:
    assert lines(
        """
        for x in loader:
            optimizer.step()
            if loss < 0.1:
                break
            if verbose:
                print(loss)
        """
    ) == ["if loss < 0.1:"]


def test_what_sets_a_variable_of_such_a_condition_is_watched_too() -> None:
    found = lines(
        """
        for epoch in range(9):
            train(model)
            if val < best:
                best, bad = val, 0
            else:
                bad += 1
            if bad > 3:
                break

        def train(model):
            loss.backward()
        """
    )
    assert found == ["if val < best:", "if bad > 3:"]


def test_an_early_stopping_object_is_followed_into_its_class() -> None:
    found = lines(
        """
        class EarlyStopping:
            def __call__(self, loss):
                if loss < self.best:
                    self.best, self.counter = loss, 0
                else:
                    self.counter += 1
                if self.counter > 3:
                    self.stop = True

        for epoch in range(9):
            loss.backward()
            stopper(loss)
            if stopper.stop:
                break

        def report(loss):
            if loss > 9:
                loss = 9
        """
    )
    assert found == ["if loss < self.best:", "if self.counter > 3:", "if stopper.stop:"]


def test_what_a_callback_ends_fit_by_is_watched() -> None:
    found = lines(
        """
        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs):
                if logs["val_acc"] > self.best:
                    self.best, self.wait = logs["val_acc"], 0
                else:
                    self.wait += 1
                    if self.wait == 2:
                        self.model.stop_training = True
                if epoch == 1:
                    self.seen = logs

        model.fit(data, callbacks=[Stop()])
        """
    )
    assert found == ['if logs["val_acc"] > self.best:', "if self.wait == 2:"]


def test_the_condition_of_a_training_while_loop_is_watched_and_that_of_an_evaluation_is_not() -> None:
    found = lines(
        """
        while loss > 0.1:
            loss.backward()
        while more:
            evaluate()
        for x in test:
            if x:
                break
        """
    )
    assert found == ["while loss > 0.1:"]


def test_the_end_of_an_episode_of_an_environment_is_each_ranks_own() -> None:
    found = lines(
        """
        for episode in range(9):
            while True:
                state, reward, done = env.step(action)
                if done:
                    break
            loss.backward()
            optimizer.step()
        """
    )
    assert found == []


def test_a_condition_around_a_collective_call_is_watched() -> None:
    assert lines("for x in loader:\n    optimizer.step()\n    if acc > best:\n        acc = dl.average(acc)\n") == [
        "if acc > best:"
    ]


def test_watched_code_runs_as_before_and_reports_its_operands() -> None:
    source = dedent(
        """
        made = []
        bad = None
        for i in range(5):
            made.append(i)
            optimizer.step()
            if bad is not None and i > limit:
                break
            bad = 1
        """
    )
    seen = []

    def watch(kind: str, text: str, condition: object, operands: object, bounds: object = None) -> object:
        seen.append((text, operands()))  # type: ignore[operator]
        return condition

    class Optimizer:
        def step(self) -> None: ...

    space = {WATCH: watch, "optimizer": Optimizer(), "limit": 2}
    exec(watched(source, "script.py"), space)
    assert space["made"] == [0, 1, 2, 3]
    assert seen[-1] == ("bad is not None and i > limit", {"bad": 1, "i": 3, "limit": 2})


def test_what_dl_comm_makes_of_a_ranks_number_is_compared_in_its_place() -> None:
    source = dedent(
        """
        if not dl:
            import dl_comm.torch as dl
        for own in (1.0, 3.0):
            optimizer.step()
            if torch.isnan(dl.average(own)) or np.average(size) > limit:
                break
        """
    )
    noted: list[dict[str, float]] = []
    recorder = SimpleNamespace(note=lambda kind, **facts: noted.append(facts["values"]), aside=nullcontext)
    recorder.statistics = str
    space = {WATCH: watch(recorder), "optimizer": SimpleNamespace(step=lambda: None), "limit": 9, "size": 5}  # type: ignore[arg-type]
    space |= {"torch": SimpleNamespace(isnan=lambda x: x != x), "np": SimpleNamespace(average=lambda x: x)}
    exec(watched(source, "script.py"), space | {"dl": SimpleNamespace(average=lambda x: 2.0)})
    assert noted[-1] == {"dl.average(own)": 2.0, "size": 5, "limit": 9}


def test_what_a_condition_compares_with_is_noted_in_whatever_terms_it_is_written() -> None:
    source = dedent(
        """
        while mean > 1e-3 * dl.get_nranks() and epoch < most:
            optimizer.step()
            if loss() < f(1) or made.count == -limit:
                break
            mean, epoch = 0, most
        """
    )
    noted: list[dict[str, float]] = []
    recorder = SimpleNamespace(note=lambda kind, **facts: noted.append(facts.get("bounds")), aside=nullcontext)
    recorder.statistics = str
    space = {WATCH: watch(recorder), "optimizer": SimpleNamespace(step=lambda: None), "limit": 9, "f": abs}  # type: ignore[arg-type]
    space |= {"mean": 1.0, "epoch": 0, "most": 3, "loss": lambda: 5, "made": SimpleNamespace(count=2)}
    exec(watched(source, "script.py"), space | {"dl": SimpleNamespace(get_nranks=lambda: 2)})
    assert noted[:2] == [{"mean": 2e-3, "epoch": 3.0, "most": 0.0}, {"made.count": -9.0}]


@pytest.mark.parametrize(
    ("serial", "port", "fault"),
    [
        ((0.5, 1e-3), (0.5, 2e-3), "other-bound"),  # n times the tolerance
        ((0.5, 1e-3), (0.5, 1e-3), ""),
        ((0.1, 1e-6), (0.2, 2e-6), ""),  # a rate, and what it is compared with, are both scaled
        ((1.0, 3.0), (1.0, 6.0), "other-bound"),  # n times the patience
        ((8.0, 100.0), (8.0, 50.0), ""),  # of steps
        ((0.5, float("inf")), (0.5, 0.6), ""),
    ],
)
def test_ranks_compare_with_the_bounds_of_the_serial_script(serial, port, fault) -> None:
    def decided(value: float, bound: float, text: str) -> list[Event]:
        facts = {"values": {"x": value}, "bounds": {"x": bound}, "statistics": ""}
        return [step(1, 0.9), event("decision", "t.py:9", what=text, **facts)]

    check = bounds(run(decided(*serial, "x < 1")), run(decided(*port, "x < 1 * n"), decided(*port, "x < 1 * n")))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(
    ("values", "best", "fault"),
    [
        ((0.5, 0.6, 0.4), (0.0, 1.0, 1.2), "other-bound"),  # n times the best so far
        ((0.5, 0.6, 0.4), (0.0, 0.5, 0.6), ""),
        ((0.5, 0.5, 0.5), (0.0, 1.0, 1.0), ""),  # where the ranks have other numbers
    ],
)
def test_ranks_compare_with_the_best_so_far_and_no_multiple_of_it(values, best, fault) -> None:
    def decided(values, best) -> list[Event]:
        pairs = [{"values": {"x": x}, "bounds": {"x": y}, "statistics": ""} for x, y in zip(values, best, strict=True)]
        return [step(1, 0.9), *(event("choice", "t.py:9", what="x > best", **facts) for facts in pairs)]

    ports = decided(values, best), decided(values, best)
    check = bounds(run(decided((0.5, 0.6, 0.4), (0.0, 0.5, 0.6))), run(*ports))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(
    ("value", "bound", "fault"), [(0.2, 1e-6, "other-bound"), (0.2, 2e-6, ""), (0.1, 1e-6, ""), (0.3, 1e-6, "")]
)
def test_what_a_rate_is_compared_with_is_scaled_as_the_rate_is(value: float, bound: float, fault: str) -> None:
    def decided(lr: float, value: float, bound: float) -> list[Event]:
        facts = {"values": {"x": value}, "bounds": {"x": bound}, "statistics": ""}
        return [step(1, 0.9, lr=lr), event("decision", "t.py:9", what="x < least", **facts)]

    ports = [decided(0.2 if value == 0.2 else 0.1, value, bound)] * 2  # or one that does not scale; or it is no rate
    check = bounds(run(decided(0.1, 0.1, 1e-6)), run(*ports))
    assert (check.fault if check else "") == fault


def test_what_an_entry_is_compared_with_is_noted() -> None:
    noted: list[dict[str, float]] = []
    recorder = SimpleNamespace(note=lambda kind, **facts: noted.append(facts.get("bounds")), aside=nullcontext)
    recorder.statistics = str
    source = "for x in y:\n    if row['f1'] > dl.lr_scale(state['best']) or row[f()] > 9:\n        save(x)\n"
    space = {WATCH: watch(recorder), "y": [1], "row": {"f1": 0.5, 0: 0.0}, "state": {"best": 0.25}, "save": str}  # type: ignore[arg-type]
    dl = SimpleNamespace(lr_scale=lambda rate: 2 * rate)
    exec(watched(source, "script.py"), space | {"dl": dl, "f": int})
    assert noted[0] == {"row['f1']": 0.5}


def test_a_condition_under_which_a_script_exits_is_watched() -> None:
    source = (
        "if best < 0.5:\n    sys.exit(3)\nif best < 0.4:\n    raise SystemExit('poor')\nif best < 1:\n    print(best)\n"
    )
    assert exiting(ast.parse(source)) == {1, 3}


def test_a_condition_that_chooses_what_is_saved_is_watched_and_one_that_saves_now_and_then_is_not() -> None:
    source = dedent(
        """
        for epoch in range(9):
            train(model)
            if accuracy > best:
                best = accuracy
                torch.save(model.state_dict(), "best.pt")
            if epoch % 5 == 0:
                torch.save(model.state_dict(), "last.pt")
            if loss < 1:
                print(loss)
        """
    )
    assert [source.splitlines()[i - 1].strip() for i in choosing(ast.parse(source))] == ["if accuracy > best:"]


def test_conditions_under_which_training_changes_are_watched_and_the_rank_s_number_is_no_operand() -> None:
    source = dedent(
        """
        if resume:
            model.load_state_dict(state)
        while step < 9:
            optimizer.step()
            if loss > last:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5
            if kl > 1:
                optimizer.learning_rate.assign(rate)
            if bad and rank == 0:
                model.load_state_dict(state)
            if acc > best:
                best = acc
            step += 1
        """
    )
    tree = ast.parse(source)
    found = [source.splitlines()[i - 1].strip() for i in sorted(changing(tree, counting(tree, Loop)))]
    assert found == ["if loss > last:", "if kl > 1:", "if bad and rank == 0:"]
    noted: list[tuple[str, dict[str, float]]] = []
    recorder = SimpleNamespace(note=lambda kind, **facts: noted.append((kind, facts["values"])), aside=nullcontext)
    recorder.statistics = str
    watch(recorder)(CHANGE, "bad and rank == 0", True, lambda: {"bad": 2.0, "rank": Whole(0)})  # type: ignore[arg-type]
    assert noted == [(CHANGE, {"bad": 2.0})]


def test_a_way_out_of_the_training_loop_by_the_rank_s_number_is_named_before_it_is_taken() -> None:
    source = dedent(
        """
        import dl_comm.torch as dl
        for step in range(2):
            if dl.get_rank() and step == 99:
                break
            optimizer.step()
            if rank != 0:
                continue
            for line in lines:
                if rank == 1:
                    break
        """
    )
    tree = ast.parse(source)
    assert [source.splitlines()[i - 1].strip() for i in leaving(tree, counting(tree, Loop))] == [
        "if dl.get_rank() and step == 99:"
    ]

    def went(rank: int) -> list[Event]:
        noted: list[Event] = []
        recorder = SimpleNamespace(
            note=lambda kind, **facts: noted.append(event(kind, **facts)), aside=nullcontext, statistics=str
        )
        made = {WATCH: watch(recorder), "optimizer": SimpleNamespace(step=lambda: None)}  # type: ignore[arg-type]
        known = {"rank": Whole(rank), "lines": [0]}
        text = source.replace("import dl_comm.torch as dl", "")
        code = watched(text, "a.py")
        exec(code, made | known | {"dl": SimpleNamespace(get_rank=lambda: Whole(rank))})
        return [*noted, step(1, 0.9)]

    check = steps(run(went(0), went(1)))
    assert (check.fault, check.finding.partition(" leads")[0]) == ("uneven-steps", "`dl.get_rank() and step == 99`")


@pytest.mark.parametrize(("kind", "fault"), [(CHANGE, "rank-dependent-change"), ("decision", "rank-dependent-exit")])
def test_ranks_that_change_their_training_by_numbers_of_their_own_are_named(kind: str, fault: str) -> None:
    ranks = [[event(kind, what="loss > last", values={"loss": loss}), step(1, 0.9)] for loss in (0.5, 0.7)]
    assert steps(run(*ranks)).fault == fault


def test_what_a_method_that_trains_changes_every_so_many_steps_is_watched() -> None:
    source = dedent(
        """
        class Agent:
            def learn(self, batch):
                self.optimizer.step()
                self.t += 1
                if self.t % self.every == 0:
                    self.target.load_state_dict(self.q.state_dict())
                if self.fresh:
                    self.target.load_state_dict(self.q.state_dict())

            def reset(self):
                if self.t % 2 == 0:
                    self.target.load_state_dict(self.q.state_dict())
        """
    )
    assert changing(ast.parse(source), set(), {"learn"}) == {6}
