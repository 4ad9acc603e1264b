"""How many files ``dlrun launch`` may have open: every rank's connection is one, and systems begin with 1024."""

from __future__ import annotations

import resource

from dlrun.errors import DlrunError

_OWN = 64  # besides the ranks: the launcher's pipe, the console, libraries


def make_room(ranks: int) -> tuple[int, int]:
    """Let this process have a file open for each rank; return the limits (soft, hard) that it was started with.

    Raises ``DlrunError`` where the hard limit is lower: only an administrator can raise that.
    """
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = ranks + _OWN
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            fewer = f", or give -n {hard - _OWN} or less" if hard > _OWN else ""
            raise DlrunError(
                f"{ranks} ranks need {needed} open files here, one for each rank, and no more than {hard} are allowed",
                f"have that limit raised (ulimit -Hn; nofile in limits.conf){fewer}",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return before
