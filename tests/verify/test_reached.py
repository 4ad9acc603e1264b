"""Calls that compute gradients and were not made in the runs are named, and the claim says so."""

from __future__ import annotations

from by_hand import event, run, step

from dlrun.verify.checks.reached import reached, unshown
from dlrun.verify.report import conclusion
from dlrun.verify.tracer.sites import sites
from dlrun.verify.verdict import Verdict, passed

SCRIPT = """
scaler.fit(x)
model.fit(x, y, epochs=3)
loss.backward()
(first
 + second).backward()
tape.gradient(loss, weights)
opt.step()
"""


def test_calls_that_train_are_found_and_a_scaler_s_fit_is_none() -> None:
    found = [(site["first"], site["last"], site["call"]) for site in sites(SCRIPT)]
    assert found == [(3, 3, "fit"), (4, 4, "backward"), (5, 6, "backward"), (7, 7, "gradient")]


def test_what_was_not_reached_is_named_and_is_no_part_of_the_claim() -> None:
    known = event("sites", file="t.py", calls=sites(SCRIPT))
    made = [event("epoch", "t.py:3"), event("backward", "t.py:4"), event("backward", "t.py:6")]
    check = reached(run([known, *made, step(1, 0.9), event("end")]))
    assert check is not None
    assert check.finding.startswith("gradient() at t.py:7: what is trained there is not judged; more than --steps 1")
    said = conclusion(Verdict((passed("a", ""), check)), "s.py", "t.py", 2)
    assert "proved as far as it ran" in said
    assert Verdict((passed("a", ""), check)).exit_code == 3
    for kind in ("backward", "derivative"):
        assert reached(run([known, *made, event(kind, "t.py:7"), step(1, 0.9), event("end")])) is None


def test_a_line_that_prints_and_was_not_reached_is_named_unless_an_option_switches_it_off() -> None:
    text = "print(a)\nif args.loud:\n    print(b)\nif a > 3:\n    print(\n        a)\n"
    check = unshown(text, "t.py", [run([event("print", "t.py:1", text="1")])])
    assert check is not None
    assert check.finding.startswith("print() at t.py:5: ")
    lines = [event("print", f"t.py:{line}", text="1") for line in (1, 6)]
    assert unshown(text, "t.py", [run(lines)]) is None


RESUMED = """
import dl_comm.torch as dl
if os.path.exists("c.pt"):
    model.load_state_dict(torch.load("c.pt"))
if resume:
    optimizer.load_state_dict(dl.load("o.pt"))
    table = np.load("t.npy")
data = torch.load("x.pt")
loss.backward()
try:
    begun = torch.load("b.pt")
except FileNotFoundError:
    pass
def resume(path):
    if not os.path.exists(path):
        return 0
    return torch.load(path)["epoch"]
class Trainer:
    def begin(self):
        if os.path.exists("k.pt"):
            self.load()
    def load(self):
        self.state = torch.load("k.pt")
"""


def test_a_checkpoint_that_is_read_where_there_is_one_and_was_not_is_named() -> None:
    known = event("sites", file="t.py", calls=sites(RESUMED))
    made = [event("backward", "t.py:9"), step(1, 0.9), event("end")]
    check = reached(run([known, *made]))
    assert check is not None
    assert check.finding.startswith("load() at t.py:4, load() at t.py:6, load() at t.py:11 and 2 more: whether all")
    both = [*(event("restores", f"t.py:{line}") for line in (4, 11, 17, 23)), event("return", "t.py:6", fn="load")]
    assert reached(run([known, *both, *made])) is None
