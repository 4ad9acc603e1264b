"""What would distribute the training only where an option is on that is off by default stands in no way of a port."""

import pytest
from small import SERIAL

from dlrun.errors import DlrunError
from dlrun.port import port

IMPORTS = """import argparse, os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler
parser = argparse.ArgumentParser()
"""
PARSE = "args = parser.parse_args()\n"
WRAPS = "    dist.init_process_group('nccl')\n    model = DDP(model)\n"
TRAINS = SERIAL.replace("for x, y", "OPTIONAL\nfor x, y", 1)


def _script(option: str, path: str) -> str:
    return IMPORTS + option + PARSE + TRAINS.replace("OPTIONAL", path)


@pytest.mark.parametrize(
    "unused",
    [
        "from torch.utils.data.distributed import DistributedSampler",
        "from accelerate import Accelerator",
        "import horovod.torch as hvd",
        "import torch.multiprocessing as mp",
    ],
)
def test_an_import_that_nothing_uses_distributes_nothing(unused):
    ported = port(f"{unused}\n{SERIAL}")
    assert "dl.gradients(" in ported.text
    assert "optional-path" not in {d.name for d in ported.doubts}


OFF = [
    ("parser.add_argument('--ddp', action='store_true')\n", f"if args.ddp:\n{WRAPS}"),
    ("parser.add_argument('--ddp', default=False, type=bool)\n", f"if args.ddp:\n{WRAPS}"),
    ("parser.add_argument('--local-rank', type=int, default=-1)\n", f"if args.local_rank != -1:\n{WRAPS}"),
    ("parser.add_argument('--gpus', type=int, default=1)\n", f"if args.gpus > 1 and ready():\n{WRAPS}"),
    ("parser.add_argument('--ws', type=int, default=1)\n", f"args.ddp = args.ws > 1\nif args.ddp:\n{WRAPS}"),
    ("parser.add_argument('--single', action='store_false')\n", f"if args.single:\n    pass\nelse:\n{WRAPS}"),
    ("MULTI = False\n", f"if MULTI:\n{WRAPS}"),
    ("", "if dist.is_initialized():\n    model = DDP(model)\n"),
    (
        "parser.add_argument('--ddp', action='store_true')\n",
        "sampler = DistributedSampler(data) if args.ddp else None\n",
    ),
    (
        "parser.add_argument('--ddp', action='store_true')\ndef meet():\n    dist.init_process_group('nccl')\n",
        "args.ddp and meet()\n",
    ),
    ("def meet():\n    dist.init_process_group('nccl')\n", ""),
]


@pytest.mark.parametrize(("option", "path"), OFF)
def test_a_path_that_is_off_by_default_leaves_the_serial_training_to_port(option, path):
    ported = port(_script(option, path))
    assert "dl.gradients(" in ported.text
    assert [d.name for d in ported.doubts].count("optional-path") == 1


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("parser.add_argument('--ddp', action='store_false')\n", f"if args.ddp:\n{WRAPS}"),
        ("parser.add_argument('--ddp', default=True)\n", f"if args.ddp:\n{WRAPS}"),
        ("parser.add_argument('ddp')\n", f"if args.ddp:\n{WRAPS}"),
        ("parser.add_argument('--ddp', required=True)\n", f"if args.ddp:\n{WRAPS}"),
        ("", f"if int(os.environ.get('WORLD_SIZE', 1)) > 1:\n{WRAPS}"),
        ("", f"if torch.cuda.device_count() > 1:\n{WRAPS}"),
        (
            "parser.add_argument('--r', type=int, default=-1)\n",
            f"args.r = int(os.environ['RANK'])\nif args.r != -1:\n{WRAPS}",
        ),
        ("", "if not dist.is_initialized():\n    dist.init_process_group('nccl')\n"),
    ],
)
def test_a_path_that_may_be_on_is_refused(option, path):
    with pytest.raises(DlrunError, match="already distributed"):
        port(_script(option, path))
