"""What torchrun sets on every rank, for scripts that torch.distributed connects: DDP, FSDP, accelerate."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any


def free_port() -> int:
    """Return a TCP port of this machine that nobody listens on; rank 0's script is to, a moment later."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def variables(place: Mapping[str, Any], master: Sequence[Any], run_dir: str) -> dict[str, str]:
    """Return the variables that ``env://`` reads; ``master`` is the address and the port where rank 0 can be reached.

    https://docs.pytorch.org/docs/stable/elastic/run.html lists them.
    """
    address, port = master
    named = {
        "RANK": place["RANK"],
        "WORLD_SIZE": place["SIZE"],
        "LOCAL_RANK": place["LOCAL_RANK"],
        "LOCAL_WORLD_SIZE": place["LOCAL_SIZE"],
        "GROUP_RANK": place["NODE"],
        "GROUP_WORLD_SIZE": place["NNODES"],
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": os.path.basename(run_dir),  # noqa: PTH119
    }
    return {name: str(value) for name, value in named.items()}
