"""The launchers' dialects: each a pure function from a settled plan to the words of a command line.

A backend starts nothing and reads nothing but its arguments. Values for the ranks travel in the spec file, and GPU
masks, logs and failures are the shim's: so what is left is how many ranks, where, and on which cores.

``BACKENDS`` is the table; ``binds`` says that the launcher itself gives each rank its cores where ``--cores`` says how
many (the shim does it otherwise), ``program`` is its usual name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dlrun.launch.plan import Flag, LaunchPlan
from dlrun.launch.site import Site

Flags = Iterator[Flag]
Env = tuple[Mapping[str, str], Sequence[str]]


def mpich(plan: LaunchPlan, site: Site) -> Flags:
    """MPICH's hydra. It binds nothing unless asked, and never minds more ranks than cores."""
    yield from intel(plan, site)
    yield Flag(("-bind-to", "none"), "the shim binds, next to the rank's GPU")


def intel(plan: LaunchPlan, site: Site) -> Flags:
    """Intel MPI: a hydra that binds by variables. ``mpirun`` is a shell script that loses signals; this is not it."""
    yield _program(plan)
    yield Flag(("-n", str(plan.ranks)), "ranks")
    if plan.hosts:
        yield Flag(("-hosts", _hosts(plan)), "the hosts, each with its ranks")
    elif plan.nodes > 1:
        yield Flag(("-ppn", str(plan.per_node)), "ranks on each node")


def intel_env(plan: LaunchPlan, site: Site) -> Env:
    """-ppn is ignored inside a batch job unless told so; a PMI library of Slurm's would be used instead of hydra's."""
    return {"I_MPI_PIN": "0", "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0"}, ("I_MPI_PMI_LIBRARY",)


def openmpi(plan: LaunchPlan, site: Site) -> Flags:
    """Open MPI 4 and 5: one spelling that both take. Left alone it would bind each rank to one core."""
    yield _program(plan)
    yield Flag(("-n", str(plan.ranks)), "ranks")
    over = ":OVERSUBSCRIBE" if plan.local and (plan.ranks or 0) > site.cores else ""
    if plan.hosts:
        yield Flag(("--host", _hosts(plan)), "the hosts, each with its slots")
    elif plan.nodes > 1:
        yield Flag(("--map-by", f"ppr:{plan.per_node}:node"), "ranks on each node")
    elif over:
        yield Flag(("--map-by", over), f"there are only {site.cores} cores: without this Open MPI refuses")
    yield Flag(("--bind-to", "none"), "the shim binds, next to the rank's GPU")
    if not plan.local:
        for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV"):
            if name in site.env:
                yield Flag(("-x", name), "Open MPI carries no variable to other nodes unless named")


def openmpi_env(plan: LaunchPlan, site: Site) -> Env:
    """As root, Open MPI refuses to start unless told twice; in a container there often is nobody else."""
    if site.user_id == 0:
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}, ()
    return {}, ()


def srun(plan: LaunchPlan, site: Site) -> Flags:
    """Slurm. ``-c`` is always restated (22.05 and later do not inherit it); it counts CPUs, so SMT is switched off.

    The job's own --cpus-per-task counts CPUs already, and stays what it is. A job that asked for GPUs by the task would
    show each rank its own alone; asked for by the node, all of the node's stay visible (and --gpu-bind=none, which
    would undo the former, leaves the mask away altogether, so that a rank could take another job's).
    """
    uneven = any(host.slots for host in plan.hosts)
    yield _program(plan)
    if plan.per_node and not uneven:
        yield Flag(("-N", str(plan.nodes)), "nodes")
    yield Flag(("-n", str(plan.ranks)), "ranks")
    if plan.per_node and not uneven:
        yield Flag((f"--ntasks-per-node={plan.per_node}",), "ranks on each node")
    if plan.cores:
        yield Flag(("-c", str(plan.cores), "--hint=nomultithread"), "cores of a rank, not hardware threads")
        yield Flag(("--cpu-bind=cores",), "each rank on its own cores")
    else:
        if cpus := site.env.get("SLURM_CPUS_PER_TASK"):
            yield Flag(("-c", cpus), "CPUs of a rank: the job's --cpus-per-task, which srun does not inherit")
        yield Flag(("--cpu-bind=none",), "the shim binds, next to the rank's GPU")
    if uneven:
        named = [host.name for host in plan.hosts for _ in range(host.slots or plan.per_node or 1)]
        yield Flag(("-m", "arbitrary", "-w", ",".join(named[: plan.ranks])), "the host of each rank")
    else:
        yield Flag(("-m", "block:block"), "neighbours in rank are neighbours on a node")
    gpus = plan.gpus or int(site.env.get("SLURM_GPUS_PER_TASK", "0").rpartition(":")[2])
    if gpus:
        why = "GPUs on each node, all of them visible; the shim puts the local one first"
        yield Flag((f"--gpus-per-node={gpus * (plan.per_node or 1)}",), why)
    if plan.hosts and not uneven:
        yield Flag(("-w", ",".join(host.name for host in plan.hosts)), "the hosts")
    yield Flag(("--kill-on-bad-exit=1",), "a rank that fails ends the job")
    yield Flag(("--wait=0",), "ranks that end early are no failure")
    yield Flag(("--unbuffered", "--input=none", "--export=ALL"), "output at once; no input; our environment")
    if plan.pmi:
        yield Flag((f"--mpi={plan.pmi}",), "what the MPI library speaks; another makes each rank alone")


def srun_env(plan: LaunchPlan, site: Site) -> Env:
    """What the job was asked for by the task is said by the node."""
    return {}, ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_TRES_BIND", "SLURM_TRES_PER_TASK")


def aprun(plan: LaunchPlan, site: Site) -> Flags:
    """Cray ALPS. ``-b`` since python need not be copied to the nodes; it counts CPUs, so ``-j 1`` for one per core."""
    yield _program(plan)
    yield Flag(("-n", str(plan.ranks)), "ranks")
    if plan.per_node:
        yield Flag(("-N", str(plan.per_node)), "ranks on each node")
    if plan.cores:
        yield Flag(("-d", str(plan.cores), "-j", "1"), "cores of a rank, one hardware thread each")
        yield Flag(("-cc", "depth"), "each rank on its own cores")
    else:
        yield Flag(("-cc", "none"), "threads of a rank may use the whole node")
    if plan.hosts:
        yield Flag(("-L", ",".join(host.name for host in plan.hosts)), "the nodes")
    yield Flag(("-b",), "run python from where it is")


def pals(plan: LaunchPlan, site: Site) -> Flags:
    """Cray PALS' mpiexec. ``--depth`` counts hardware threads; in a job this is one of its nodes, which tells."""
    yield _program(plan)
    yield Flag(("-n", str(plan.ranks)), "ranks")
    if plan.per_node:
        yield Flag(("--ppn", str(plan.per_node)), "ranks on each node")
    if plan.cores:
        threads = max(site.cpus // site.cores, 1) if site.allocation.system else 1
        counted = f"cores of a rank, {threads} hardware threads each" if threads > 1 else "cores of a rank"
        yield Flag(("--depth", str(plan.cores * threads), "--cpu-bind", "depth"), counted)
    else:
        yield Flag(("--cpu-bind", "none"), "the shim binds, next to the rank's GPU")
    if plan.hosts:
        yield Flag(("--hosts", ",".join(host.name for host in plan.hosts)), "the hosts")


def jsrun(plan: LaunchPlan, site: Site) -> Flags:
    """IBM jsrun: a resource set for each rank where ``--cores`` says how large, else one for each node.

    In a set of a node the shim binds and masks, and ranks can map their neighbours' GPU memory.
    """
    yield _program(plan)
    if plan.per_node and not plan.cores and plan.nodes * plan.per_node == plan.ranks:
        yield Flag(("-n", str(plan.nodes), "-r", "1"), "resource sets, one on each node")
        yield Flag(("-a", str(plan.per_node), "-c", "ALL_CPUS", "-g", "ALL_GPUS"), "its ranks, and all the node has")
        yield Flag(("-b", "none", "-d", "packed"), "the shim binds, next to the rank's GPU")
    else:
        cores = str(plan.cores or 1)
        yield Flag(("-n", str(plan.ranks)), "resource sets, one per rank")
        if plan.per_node:
            yield Flag(("-r", str(plan.per_node)), "resource sets on each node")
        yield Flag(("-a", "1", "-c", cores, "-g", str(plan.gpus or 0)), "ranks, cores and GPUs of a set")
        yield Flag(("-b", f"packed:{cores}", "-d", "packed"), "each rank on its own cores")
    yield Flag(("-X", "1"), "a rank that fails ends the job")


def flux(plan: LaunchPlan, site: Site) -> Flags:
    """Flux. Left alone it gives a rank one core; whole nodes, unbound, leave the binding to the shim."""
    yield _program(plan)
    yield Flag(("run",), "start a job and wait for it")
    if plan.per_node:
        yield Flag(("-N", str(plan.nodes)), "nodes")
    yield Flag(("-n", str(plan.ranks)), "ranks")
    if plan.cores:
        yield Flag(("-c", str(plan.cores), "-o", "cpu-affinity=per-task"), "cores of a rank, its own")
    else:
        whole = ("--exclusive",) if plan.per_node else ()
        yield Flag((*whole, "-o", "cpu-affinity=off"), "the shim binds, next to the rank's GPU")
    if plan.gpus and (plan.cores or not plan.per_node):
        yield Flag(("-g", str(plan.gpus)), "GPUs of a rank")
    yield Flag(("-o", "gpu-affinity=off"), "the shim masks the GPUs")
    if plan.hosts:
        yield Flag((f"--requires=host:{','.join(host.name for host in plan.hosts)}",), "the hosts")
    yield Flag(("-o", "exit-on-error"), "a rank that fails ends the job")
    yield Flag(("-u",), "output at once")


def local(plan: LaunchPlan, site: Site) -> Flags:
    """No launcher: one rank, started directly."""
    return iter(())


def no_env(plan: LaunchPlan, site: Site) -> Env:
    """Nothing to set, nothing to drop."""
    return {}, ()


class Backend(NamedTuple):
    """One launcher's dialect."""

    program: str
    flags: Callable[[LaunchPlan, Site], Flags]
    binds: bool = False
    env: Callable[[LaunchPlan, Site], Env] = no_env


BACKENDS = {
    "mpich": Backend("mpiexec", mpich),
    "openmpi": Backend("mpirun", openmpi, env=openmpi_env),
    "srun": Backend("srun", srun, binds=True, env=srun_env),
    "aprun": Backend("aprun", aprun, binds=True),
    "pals": Backend("mpiexec", pals, binds=True),
    "intel": Backend("mpiexec.hydra", intel, env=intel_env),
    "jsrun": Backend("jsrun", jsrun, binds=True),
    "flux": Backend("flux", flux, binds=True),
    "spectrum": Backend("mpirun", openmpi, env=openmpi_env),
    "local": Backend("", local),
}


def _program(plan: LaunchPlan) -> Flag:
    assert plan.launcher
    return Flag((plan.launcher.path,), "the launcher" + (f": {plan.launcher.why}" if plan.launcher.why else ""))


def _hosts(plan: LaunchPlan) -> str:
    """Return ``h1:2,h2:3``: the ranks that each host takes, an equal share where not said."""
    even = -(-(plan.ranks or 1) // len(plan.hosts))
    return ",".join(f"{host.name}:{host.slots or plan.per_node or even}" for host in plan.hosts)
