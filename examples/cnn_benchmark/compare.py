"""Compare ways to average gradients, in one run: dl_comm, PyTorch's DistributedDataParallel with gloo, Horovod.

    dlrun launch -n 2 compare.py --model resnet50 --size 64 --batch-size 8
    dlrun launch -n 2 --share-gpus compare.py --model resnet50 --size 224 --device cuda

Each way trains a model of its own on the same images. They take turns, a few steps each, so that whatever else the
machine does meets all alike; the first turn warms up. In the end all must hold the same parameters. "none" averages
nothing. Averaging alone is timed in every turn, too: a step without communication and averaging alone are, together,
what a step would take if nothing overlapped and nothing was lost.
"""

import argparse
import socket
import time

import dl_comm.torch as dl
import torch
import torch.nn.functional as F
from serial import MODELS, synthetic_images
from table import table


class Way:
    """One way to train: its model, its optimizer, and what it does between backward and step."""

    def __init__(self, name, args):
        self.name, self.seconds = name, []
        torch.manual_seed(1)
        self.net = self.model = MODELS[args.model](args.classes).to(args.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.average = self.leave = lambda: None
        if name.startswith("dl_comm"):
            self.average = lambda: dl.gradients(self.optimizer)
            if name == "dl_comm, overlapped":
                dl.overlap(self.optimizer)
        elif name == "DDP, gloo":
            self.model = torch.nn.parallel.DistributedDataParallel(self.net)
        elif name == "Horovod":
            import horovod.torch as hvd

            self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.net.named_parameters())
            self.leave = hvd.shutdown  # its thread uses MPI until then

    def step(self, images, labels):
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()
        self.average()
        self.optimizer.step()

    def turn(self, batches):
        """Train on this rank's batches; note the seconds that a step took until all ranks had taken it."""
        start = together()
        for images, labels in batches:
            self.step(images, labels)
        self.seconds.append((together() - start) / len(batches))


def together():
    """Return the time when all ranks have come here, and their GPUs have done what they were given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dl.barrier()
    return time.perf_counter()


def join_gloo():
    """Let torch.distributed meet at a port of rank 0's host that rank 0 has opened."""
    rank, n, host = dl.get_rank(), dl.get_nranks(), dl.broadcast(socket.gethostname())
    store = torch.distributed.TCPStore(host, 0, n, is_master=True, wait_for_workers=False) if rank == 0 else None
    port = dl.broadcast(store.port if store else 0)
    store = store or torch.distributed.TCPStore(host, port, n, is_master=False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=n)


def ways(args):
    names = ["none", "dl_comm", "dl_comm, overlapped"]
    if torch.distributed.is_available():
        join_gloo()
        names.append("DDP, gloo")
    try:
        import horovod.torch as hvd
    except ImportError:
        dl.print("Horovod is not installed here: left out")
    else:
        hvd.init()
        names.append("Horovod")
    return [Way(name, args) for name in names]


def averaging_alone(optimizer, times):
    """Return the seconds that averaging the gradients takes while nothing else happens."""
    start = together()
    for _ in range(times):
        dl.gradients(optimizer)
    return (together() - start) / times


def check(taking_part):
    """Fail unless all that averaged hold the same parameters, to the rounding of sums in another order."""
    reference = next(way for way in taking_part if way.name == "dl_comm")
    for way in taking_part:
        if way.name == "none":
            continue
        for (name, one), other in zip(reference.net.named_parameters(), way.net.parameters(), strict=True):
            scale = one.detach().abs().max().clamp_min(1e-6)
            apart = float(((one - other).abs().max() / scale).detach())
            assert apart < 0.02, f"{way.name}: {name} differs from dl_comm's by {apart:.1%} of its largest value"


def main():
    parser = argparse.ArgumentParser(description="ways to average gradients, PyTorch")
    parser.add_argument("--model", choices=list(MODELS), default="small")
    parser.add_argument("--size", type=int, default=32, help="pixels along each side")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where each rank trains")
    parser.add_argument("--steps", type=int, default=5, help="steps a turn")
    parser.add_argument("--turns", type=int, default=9, help="turns of each way; the first is not counted")
    args = parser.parse_args()

    images, labels = synthetic_images(args.steps * args.batch_size * dl.get_nranks(), args.size, args.classes).tensors
    images, labels = images.to(args.device), labels.to(args.device)
    mine = slice(dl.get_rank(), None, dl.get_nranks())
    batches = list(zip(images[mine].split(args.batch_size), labels[mine].split(args.batch_size), strict=True))
    taking_part = ways(args)
    alone = []
    for turn in range(args.turns):
        for i in range(len(taking_part)):
            taking_part[(turn + i) % len(taking_part)].turn(batches)
        alone.append(averaging_alone(taking_part[0].optimizer, args.steps))
    check(taking_part)
    n = dl.get_nranks()
    what = f"{args.batch_size} images of {args.size} x {args.size} a rank and step"
    title = f"{args.model}, {n} ranks on {args.device}, {what}"
    counted = {way.name: way.seconds[1:] for way in taking_part}
    dl.print("\n" + table(title, n * args.batch_size, counted, alone[1:]))
    for way in taking_part:
        way.leave()
    if torch.distributed.is_available():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    dl.init()
    main()
    dl.finalize()
