"""A real allreduce over the very line that a job is to be launched with, before it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlrun.errors import DlrunError
from dlrun.launch import LaunchPlan, launch, prepare
from dlrun.launch.result import check_interrupted

_PROGRAM = Path(__file__).parent / "programs" / "allreduce.py"


def check(plan: LaunchPlan) -> str:
    """Launch ``plan``'s ranks with a script that averages known numbers; return the line that says that all is well.

    Raises :class:`DlrunError` that names the rank where a result is wrong, and where the ranks do not see each other.
    """
    settled, _ = prepare(plan)
    answers: dict[int, Mapping[str, Any]] = {}
    others: list[str] = []

    def hear(rank: int, stream: str, line: str) -> None:
        if stream == "out" and line.startswith("{"):
            answers[rank] = json.loads(line)
        else:
            others.append(line)

    assert settled.ranks
    probe = plan._replace(
        program=(str(_PROGRAM),),
        module=False,
        ranks=settled.ranks,
        show=tuple(range(settled.ranks)),
        run_dir=f"{settled.run_dir}/check",
        stall_timeout=60.0,
        on_stall="abort",
    )
    result = launch(probe, on_line=hear)
    check_interrupted(result)
    if result.failure or result.returncode:
        why = str(result.failure) if result.failure else f"it ended with exit code {result.returncode}"
        raise DlrunError(f"the check failed: {why}", f"its logs are in {result.run_dir}")
    return verdict([answers.get(rank, {}) for rank in range(settled.ranks)], result.seconds)


def verdict(answers: Sequence[Mapping[str, Any]], seconds: float) -> str:
    """Return what the ranks' ``answers`` say, if that is good; raise :class:`DlrunError` that names the rank if not."""
    for rank, answer in enumerate(answers):
        if not answer:
            raise DlrunError(f"the check failed: rank {rank} gave no answer")
        if answer["size"] != len(answers):
            raise DlrunError(
                f"asked {len(answers)} ranks, and rank {rank}'s MPI library sees {answer['size']}",
                "its launcher and its library are of two kinds: dlrun doctor shows them",
            )
        if answer["wrong"]:
            raise DlrunError(
                f"the check failed: rank {rank} got wrong averages: {answer['wrong'][0]}",
                "compare with another launcher (--backend) or MPI (DL_COMM_MPI_LIBRARY)",
            )
    slowest = max(answer["seconds"] for answer in answers)
    megabytes = answers[0]["bytes"] / 1e6
    who = f"{len(answers)} ranks" if answers[1:] else "1 rank, alone,"
    return (
        f"check: {who} averaged {megabytes:.1f} MB in {1000 * slowest:.0f} ms, all of it right "
        f"({seconds:.1f} s with start and end)"
    )
