"""Simulate dl_comm's allreduce between nodes on networks of 64, 256 and 1024 nodes, beside MPI's algorithms.

Needs SimGrid with SMPI (Debian: libsimgrid-dev). ``python comm/simulation/simulate.py`` prints the table;
``--nodes``, ``--network``, ``--bytes`` and ``--step`` take part of it. Times are simulated: the machine that runs this
does not matter.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ["wire.cc", "wire_table.cc", "transport.cc", "error.cc"]

# Links of 12.5 GB/s (100 Gbit/s) and 250 ns. Fat trees have full bandwidth between all nodes.
TOPOLOGIES = {
    ("fat tree", 64): ("FAT_TREE", "2;8,8;1,8;1,1"),
    ("fat tree", 128): ("FAT_TREE", "2;16,8;1,16;1,1"),
    ("fat tree", 256): ("FAT_TREE", "2;16,16;1,16;1,1"),
    ("fat tree", 1024): ("FAT_TREE", "3;16,8,8;1,8,8;1,1,1"),
    ("dragonfly", 64): ("DRAGONFLY", "2,4;2,3;4,1;4"),
    ("dragonfly", 128): ("DRAGONFLY", "4,4;2,3;4,1;4"),
    ("dragonfly", 256): ("DRAGONFLY", "4,4;2,3;8,1;4"),
    ("dragonfly", 1024): ("DRAGONFLY", "8,4;4,3;8,1;4"),
}
# SimGrid's names of MPI's algorithms: recursive doubling, Rabenseifner's, the ring.
PEERS = {"rdb": "doubling", "rab_rdb": "Rabenseifner", "lr": "ring"}
OLD_CYCLE, CYCLE = 5e-3, 1e-3  # seconds: HOROVOD_CYCLE_TIME's default before and since its version 0.21
CONFIGURATION = [
    "--cfg=smpi/simulate-computation:no",
    "--cfg=smpi/host-speed:10Gf",
    "--cfg=smpi/shared-malloc-blocksize:134217728",
    "--cfg=smpi/bw-factor:0:1",
    "--cfg=smpi/lat-factor:0:1",
    "--log=root.thres:critical",
]


@dataclass(frozen=True)
class Network:
    """A simulated machine: files that SimGrid reads."""

    kind: str
    nodes: int
    folder: Path

    def write(self) -> Network:
        """Write the platform, the list of hosts and return self."""
        topology, parameters = TOPOLOGIES[self.kind, self.nodes]
        cluster = (
            f'<cluster id="c" prefix="n" suffix="" radical="0-{self.nodes - 1}" speed="10Gf" bw="12.5GBps" lat="250ns" '
            f'sharing_policy="SPLITDUPLEX" topology="{topology}" topo_parameters="{parameters}"/>'
        )
        head = '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
        (self.folder / "platform.xml").write_text(f'{head}<platform version="4.1">{cluster}</platform>\n')
        (self.folder / "hosts").write_text("".join(f"n{node}\n" for node in range(self.nodes)))
        return self

    def run(self, *words: str, timeout: float = 900) -> str:
        """Return what a simulated MPI job prints."""
        files = ["-platform", str(self.folder / "platform.xml"), "-hostfile", str(self.folder / "hosts")]
        command = ["smpirun", "-np", str(self.nodes), *files, *CONFIGURATION, *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=self.folder)
        if ended.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\nended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout + ended.stderr

    def step(self, program: Path, how: str, size: int, *seconds: float) -> float:
        """Return the seconds that ``program HOW SIZE SECONDS...`` took on the slowest rank."""
        for line in self.run(str(program), how, str(size), *map(str, seconds)).splitlines():
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise SystemExit(f"step {how} {size} printed no time")

    def peer(self, algorithm: str, size: int) -> float:
        """Return the seconds that MPI's algorithm takes, replayed from a trace."""
        traces = []
        for rank in range(self.nodes):
            trace = self.folder / f"trace.{rank}"
            trace.write_text(f"{rank} init\n{rank} allreduce {size // 4} 0 5\n{rank} finalize\n")
            traces.append(f"{trace}\n")
        (self.folder / "traces").write_text("".join(traces))
        chosen = [f"--cfg=smpi/allreduce:{algorithm}", "--cfg=smpi/display-timing:yes"]
        said = self.run(*chosen, "--log=smpi_utils.thres:info", "-replay", str(self.folder / "traces"))
        for line in said.splitlines():
            if "Simulated time:" in line:
                return float(line.split(":")[-1].split()[0])
        raise SystemExit(f"replaying {algorithm} printed no time")


def build(folder: Path) -> Path:
    """Compile step.cc with dl_comm's own source between the nodes."""
    program = folder / "step"
    sources = [str(HERE / "step.cc"), *(str(HERE.parent / "src" / name) for name in SOURCES)]
    include = f"-I{HERE.parent / 'src'}"
    subprocess.run(["smpicxx", "-std=c++17", "-O2", include, *sources, "-o", str(program)], check=True)
    return program


def shown(seconds: float) -> str:
    """Three digits with a unit."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def size_shown(size: int) -> str:
    """KB and MB as powers of ten."""
    return f"{size // 1_000_000} MB" if size >= 1_000_000 else f"{size // 1000} KB"


def compare(network: Network, program: Path, sizes: Iterable[int]) -> None:
    """Print one row per size: dl_comm, MPI's algorithms, and the ratio to the best of them."""
    for size in sizes:
        ours = network.step(program, "default", size)
        peers = {name: network.peer(name, size) for name in PEERS if not (name == "rdb" and size > 10_000_000)}
        best = min(peers, key=lambda name: peers[name])
        cells = [shown(peers[name]) if name in peers else "" for name in PEERS]
        row = [network.kind, str(network.nodes), size_shown(size), shown(ours), *cells, f"{ours / peers[best]:.2f}"]
        print("| " + " | ".join(row) + " |", flush=True)


def seconds_per_request(folder: Path, ranks: int) -> float:
    """Measure what a coordinator spends on one reported tensor, on this machine (requests.cc says how)."""
    program = folder / "requests"
    subprocess.run(["c++", "-std=c++17", "-O2", str(HERE / "requests.cc"), "-o", str(program)], check=True)
    said = subprocess.run([str(program), str(ranks)], check=True, capture_output=True, text=True).stdout
    return float(said.split()[-1]) * 1e-9


def compare_steps(network: Network, program: Path) -> None:
    """Print what a step of ResNet-50's 161 tensors costs: dl_comm's, and four times Horovod's, as a sum of its parts.

    With rank 0 as coordinator: its messages alone; its work too; and the wait for its thread, which wakes once a cycle.
    The last is how Horovod goes about it since its version 0.21: bits, a shorter cycle, buffers of 128 MB.
    """
    size = 102_228_128
    request = seconds_per_request(network.folder, network.nodes)
    agreed, fused, whole = (network.step(program, how, size) for how in ("agreed", "fused", "default"))
    messages, handled = (network.step(program, "negotiated", 4, each) for each in (0, request))
    bits = network.step(program, "cached", 4)
    others = [fused + messages, fused + handled, fused + handled + OLD_CYCLE / 2, whole + bits + CYCLE / 2]
    cells = [f"{shown(other)} ({other / agreed:.2f} x)" for other in others]
    print("| " + " | ".join([network.kind, str(network.nodes), shown(agreed), *cells]) + " |", flush=True)


def main() -> None:
    """Print the tables that the command line asks for."""
    parser = argparse.ArgumentParser(description="Simulate allreduces between nodes.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, 256, 1024], help="numbers of nodes")
    parser.add_argument("--network", nargs="+", default=["fat tree", "dragonfly"], choices=["fat tree", "dragonfly"])
    parser.add_argument("--bytes", type=int, nargs="+", default=[10**k for k in range(3, 9)], help="sizes")
    parser.add_argument("--step", action="store_true", help="compare steps of ResNet-50 with a negotiating one instead")
    chosen = parser.parse_args()
    if shutil.which("smpirun") is None:
        raise SystemExit("smpirun is missing: install SimGrid (Debian: apt-get install libsimgrid-dev)")
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        for kind in chosen.network:
            for nodes in chosen.nodes:
                network = Network(kind, nodes, Path(folder)).write()
                if chosen.step:
                    compare_steps(network, program)
                else:
                    compare(network, program, chosen.bytes)


if __name__ == "__main__":
    sys.exit(main())
