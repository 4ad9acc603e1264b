"""The runs that show whether ranks that share an evaluation find what 1 rank does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlrun.verify.checks import metrics
from dlrun.verify.checks.data import batch_factor
from dlrun.verify.checks.lengths import in_epochs
from dlrun.verify.checks.metrics import NAME
from dlrun.verify.checks.replayed import replayed
from dlrun.verify.refusals import framework_of
from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, failed, skipped

if TYPE_CHECKING:
    from dlrun.verify.job import Runs

FIRST = "first repair what failed above"


def shared(runs: Runs, serial: Run, again: Run, identity: Run, broken: bool) -> Check:
    """Run the port with the training replicated and evaluations sharded, where there are such, or sums of them."""
    trained = {epoch.loader for epoch in identity.root.epochs if epoch.trains}
    shards = list(identity.root.returns("shard"))
    kept = tuple(call["shard"] for call in shards if trained & set(call["loaders"]) or not call["loaders"])
    if len(kept) == len(shards) and not any(call["evaluates"] for call in identity.root.returns("total")):
        return metrics.metrics(serial, again, identity, None)
    if broken:
        return skipped(metrics.NAME, FIRST)
    run = runs.port("metrics", runs.job.ranks, env={"DL_COMM_REPLICATE": "1"}, training_shards=kept)
    if run.hung or run.error:
        said = f": {run.error[1]['message']}" if run.error else ": the ranks wait for each other"
        return failed(metrics.NAME, f"sharded evaluation does not come to its end{said}", "", "fails")
    return metrics.metrics(serial, again, identity, run)


@dataclass(frozen=True)
class Evaluations:
    """Makes those of a port that shares all data by the ranks' numbers. ``sharded`` has kept its parameters."""

    runs: Runs
    serial: Run
    identity: Run
    sharded: Run

    def check(self) -> Check:
        """Let 1 rank take over the parameters that n ranks come to, and compare what the evaluations show."""
        forwards = list(self.serial.root.all("forward"))
        if (
            framework_of(self.runs.job.port) != "torch"
            or not forwards
            or any(event["type"] == "by hand" for event in self.serial.root.all("optimizer"))
        ):
            return skipped(NAME, "no module and optimizer of PyTorch's trains: how the ranks evaluate is not judged")
        # Batch norm's statistics would be local to each rank.
        still: dict[str, Any] = {"quiet": True} if any(event["norm"] for event in forwards) else {}
        kept = self.sharded
        if still:
            kept = self.runs.port("kept", len(kept.traces), seed_by_rank=True, lineage=True, keeps=True, **still)
        cut = min([self.runs.cut, *(len(steps) for steps in in_epochs(kept.root)[1:2])])
        given: dict[str, Any] = {"follows": str(self.runs.folder.resolve() / kept.name), **still}
        with ThreadPoolExecutor(3) as pool:
            one, two = (
                pool.submit(self.runs.port, name, 1, None, cut, shaken=shaken, **given)
                for name, shaken in (("follows", False), ("shaken", True))
            )
            own = self.identity
            same = batch_factor(self.serial, self.sharded) == 1  # 1 rank would come to the ranks' parameters by itself
            if still or same or cut != self.runs.cut:
                own = pool.submit(self.runs.port, "own", 1, None, cut, shaken=same, **still).result()
            every = (kept, one.result(), two.result(), own)
        if bad := next((run for run in every if run.error or run.hung), None):
            said = f": {bad.error[1]['message']}" if bad.error else ""
            return skipped(
                NAME, f"with the parameters of {len(kept.traces)} ranks 1 rank does not come to its end{said}"
            )
        return replayed(*every)
