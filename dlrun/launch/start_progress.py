"""How many ranks have started, told while a launch waits for the others."""

from __future__ import annotations

from dlrun.progress import QUIET, Progress


class StartProgress:
    """Tells how many of `ranks` are here and how long the others still have; silent unless `telling`."""

    def __init__(self, ranks: int, started: float, limit: float, telling: bool) -> None:
        self.ranks, self.started, self.limit = ranks, started, limit
        self.progress = Progress(ranks)
        self.due = started + QUIET if telling else float("inf")

    def tell(self, now: float, missing: int) -> None:
        """Say who is missing, once a second on a terminal; be quiet from the moment when all are here."""
        if not missing:
            self.due = float("inf")
            self.progress.clear()
        elif now >= self.due:
            self.due = now + 1.0
            left = max(0.0, self.limit - (now - self.started))
            here = self.ranks - missing
            self.progress.say(f"{here} of {self.ranks} ranks have started, the others have {left:.0f} s")
