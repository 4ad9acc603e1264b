"""The start of a job: what must be there before its ranks are, then its launcher.

What watches the job (process.py) is imported while the launcher starts the ranks.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Mapping

from dlrun.launch.launcher_process import LauncherProcess
from dlrun.launch.limits import make_room
from dlrun.launch.plan import Command, LaunchPlan
from dlrun.launch.rank_server import RankServer


class Start:
    """The server that the ranks of a settled plan call, and their launcher, once it has begun."""

    def __init__(self, plan: LaunchPlan) -> None:
        assert plan.ranks
        self.plan = plan
        self.started, self.began = time.monotonic(), time.time()
        self.open_files = make_room(plan.ranks)
        self.selector = selectors.DefaultSelector()
        self.server = RankServer(plan.ranks, plan.local, plan.silence, self.selector)
        self.launcher: LauncherProcess | None = None
        self.closed = False

    def begin(self, command: Command, env: Mapping[str, str]) -> None:
        """Start the launcher."""
        self.launcher = LauncherProcess(command, env, self.plan.cwd, self.selector, self.open_files)

    def end_launcher(self) -> None:
        """End the launcher, and its ranks with it."""
        if self.launcher:
            assert self.plan.launcher
            self.launcher.end(by_group=self.plan.launcher.backend != "srun")

    def close(self) -> None:
        """End the launcher, where it runs, and hang up on everybody; once."""
        if self.closed:
            return
        self.closed = True
        try:
            self.end_launcher()
        finally:
            self.server.close()
            self.selector.close()
