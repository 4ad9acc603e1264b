"""Compare ways to average gradients, in one run: dl_comm, PyTorch's DistributedDataParallel with gloo, Horovod.

    dlrun launch -n 2 compare.py --model resnet50 --size 64 --batch-size 8

Each way trains a model of its own on the same images. They take turns, a few steps each, so that whatever else the
machine does meets all alike; the first turn warms up. In the end all must hold the same parameters. "none" averages
nothing: what the others take longer is what communication costs.
"""

import argparse
import socket
import statistics
import time

import dl_comm.torch as dl
import torch
import torch.nn.functional as F
from serial import MODELS, synthetic_images


class Way:
    """One way to train: its model, its optimizer, and what it does between backward and step."""

    def __init__(self, name, args):
        self.name, self.rates = name, []
        torch.manual_seed(1)
        self.net = self.model = MODELS[args.model](args.classes)
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

    def turn(self, batches, count):
        """Train on this rank's batches; note the images per second of all ranks together."""
        dl.barrier()
        start = time.perf_counter()
        for images, labels in batches:
            self.step(images, labels)
        dl.barrier()
        self.rates.append(count / (time.perf_counter() - start))


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


def allreduce_alone(model, times=10):
    """Return the seconds that averaging the model's gradients takes while nothing else happens: the median."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    taken = []
    for _ in range(times):
        dl.barrier()
        start = time.perf_counter()
        dl.gradients(model)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


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


def report(args, taking_part, alone):
    n = dl.get_nranks()
    dl.print(f"\n{args.model}, {n} ranks, {args.batch_size} images of {args.size} x {args.size} a rank and step")
    dl.print(f"averaging alone (dl_comm): {1e3 * alone:.2f} ms\n")
    dl.print("| way | images/s, mean | standard deviation | ms a step | of none |\n|---|---|---|---|---|")
    none = statistics.mean(taking_part[0].rates[1:])
    for way in taking_part:
        rates = way.rates[1:]
        mean = statistics.mean(rates)
        step = 1e3 * n * args.batch_size / mean
        dl.print(f"| {way.name} | {mean:.1f} | {statistics.pstdev(rates):.1f} | {step:.1f} | {mean / none:.1%} |")


def main():
    parser = argparse.ArgumentParser(description="ways to average gradients, PyTorch")
    parser.add_argument("--model", choices=list(MODELS), default="small")
    parser.add_argument("--size", type=int, default=32, help="pixels along each side")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--steps", type=int, default=5, help="steps a turn")
    parser.add_argument("--turns", type=int, default=9, help="turns of each way; the first is not counted")
    args = parser.parse_args()

    images, labels = synthetic_images(args.steps * args.batch_size * dl.get_nranks(), args.size, args.classes).tensors
    mine = slice(dl.get_rank(), None, dl.get_nranks())
    batches = list(zip(images[mine].split(args.batch_size), labels[mine].split(args.batch_size), strict=True))
    taking_part = ways(args)
    for turn in range(args.turns):
        for i in range(len(taking_part)):
            taking_part[(turn + i) % len(taking_part)].turn(batches, len(images))
    check(taking_part)
    report(args, taking_part, allreduce_alone(taking_part[0].net))
    for way in taking_part:
        way.leave()
    if torch.distributed.is_available():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    dl.init()
    main()
    dl.finalize()
