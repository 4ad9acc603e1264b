"""Which of a team's calls block, and which return the mean of the step before: the phases of ``config_team``.

One pure function from the arguments and the number of a call to what that call does. With lag one the network trains
while the gradients travel; a warm-up that blocks first, or a cool-down that blocks last, keeps the accuracy.

    ksteps > 0    warm-up: the first ksteps calls block, later ones are pipelined; ksteps >= max_steps: all block
    ksteps = 0    all are pipelined
    ksteps < 0    cool-down: calls are pipelined, and block from call |ksteps| on (the manual's reading, in whose
                  example ksteps is -int(0.90 * max_steps)), or, with DL_COMM_COOLDOWN=last, the last |ksteps| of
                  max_steps block
    transition    0 switches at once; k >= 1 blends over max(k, 1 % of max_steps) calls, with a rising share of the
                  mode switched to

After max_steps calls the last mode stays.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phases:
    """The arguments of ``config_team`` that decide when calls block, and how a negative ksteps is read."""

    transition: int = 0
    ksteps: int = 1
    max_steps: int = 1
    cooldown: str = "step"

    @property
    def switch(self) -> int:
        """The number of the first call in the second mode."""
        if self.ksteps >= 0:
            return self.ksteps
        return -self.ksteps if self.cooldown == "step" else max(0, self.max_steps + self.ksteps)

    @property
    def window(self) -> int:
        """Over how many calls the modes are blended."""
        return max(self.transition, -(-self.max_steps // 100)) if self.transition > 0 else 0


def lagging_share(phases: Phases, call: int) -> float:
    """Return the share of the previous step's mean in what call number ``call`` (from 0) returns; 0 blocks, 1 lags.

    Between them the call waits for its own mean too, and returns ``(1 - share) * own + share * previous``.
    """
    call = min(call, max(phases.max_steps - 1, 0))
    warms_up = phases.ksteps >= 0
    if warms_up and phases.ksteps >= phases.max_steps:
        return 0.0
    into = call - phases.switch
    if into < 0:
        risen = 0.0
    elif into >= phases.window:
        risen = 1.0
    else:
        risen = (into + 1) / (phases.window + 1)
    return risen if warms_up else 1.0 - risen
