"""The checks that name the wrong option: counts that cannot be, and ranks that do not fit the machine."""

from __future__ import annotations

from dlrun.errors import DlrunError
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.site import Site

# Launchers that take hosts, but not a number of ranks for each.
_EVEN = ("aprun", "pals", "flux")


def check_counts(plan: LaunchPlan, ranks: int) -> None:
    """Raise DlrunError that names the option whose number cannot be."""
    asked = (
        ("-n", ranks, 1, "a job has at least one rank"),
        ("--per-node", plan.per_node, 1, "a node has at least one rank"),
        ("--cores", plan.cores, 1, "a rank has at least one core"),
        ("--gpus", plan.gpus, 1, "a rank is kept from GPUs by --env CUDA_VISIBLE_DEVICES="),
        ("--silence", plan.silence, 1, "a node gets at least a second to answer"),
        ("--start-timeout", plan.start_timeout, 1, "ranks get at least a second to start"),
        ("--stall-timeout", plan.stall_timeout, 1, "ranks get at least a second to make progress"),
        ("--save-time", plan.save_time, 0, "there is no less time than none"),
    )
    for option, value, least, why in asked:
        if value is not None and not value >= least:
            raise DlrunError(f"{option} {value}: {why}", f"give {option} {least} or more")
    slots = [host.slots for host in plan.hosts if host.slots is not None]
    if plan.hosts and len(slots) == len(plan.hosts) and sum(slots) < ranks:
        hosts = f"{len(slots)} hosts named take" if len(slots) > 1 else "one host named takes"
        raise DlrunError(
            f"-n {ranks} ranks, and the {hosts} {sum(slots)}", f"give -n {sum(slots)}, or more slots per host"
        )
    outside = [rank for rank in plan.show or () if rank >= ranks]
    if outside:
        option = "--debug" if plan.input == outside[0] else "--show"
        raise DlrunError(f"{option} {outside[0]}: the ranks are 0 to {ranks - 1}")


def check_placement(plan: LaunchPlan, site: Site, ranks: int, backend: str, local: bool) -> None:
    """Raise DlrunError where the ranks do not fit the cores, GPUs or hosts that were named; ``local``: this machine."""
    if plan.cores and local and plan.cores * ranks > site.cores:
        raise DlrunError(
            f"--cores {plan.cores} for {ranks} ranks needs {plan.cores * ranks} cores; {site.host} has {site.cores}",
            f"give --cores {max(site.cores // ranks, 1)} or less",
        )
    if plan.gpus and local and site.gpus and plan.gpus * ranks > site.gpus:
        raise DlrunError(
            f"--gpus {plan.gpus} for {ranks} ranks needs {plan.gpus * ranks} GPUs; {site.host} has {site.gpus}",
            "give --share-gpus in place of --gpus, and the ranks share them",
        )
    if local and not plan.gpus and not (plan.share_gpus or plan.mps) and 0 < site.gpus < ranks:
        raise DlrunError(
            f"{ranks} ranks, and {site.host} has {gpus_of(site)}",
            f"give -n {site.gpus}, or --share-gpus: ranks then share a GPU and its memory, or use none",
        )
    if plan.hosts and backend == "jsrun":
        raise DlrunError(
            "jsrun takes no hosts: LSF has chosen them", "leave out --hosts; --per-node says how many ranks each takes"
        )
    if any(host.slots for host in plan.hosts) and backend in _EVEN:
        raise DlrunError(
            f"{backend} starts the same number of ranks on every host",
            "leave out the ranks of each host, and give --per-node",
        )
    if backend == "local" and ranks > 1:
        raise DlrunError(f"--backend local starts one rank, and -n asks for {ranks}", "leave out --backend")


def gpus_of(site: Site) -> str:
    """Return how many GPUs are here, in words."""
    return f"{site.gpus} GPU{'s' if site.gpus > 1 else ''}"


def reason_against_mps(plan: LaunchPlan, site: Site, ranks: int, local: bool) -> str:
    """Return why no service of NVIDIA's is started for these ranks; "" where one is to be."""
    if not local:
        return "dlrun starts NVIDIA's service for ranks of this machine alone; a batch job's is the site's"
    if not site.gpus:
        return f"dlrun sees no GPU on {site.host}"
    return "" if site.gpus < ranks * (plan.gpus or 1) else "every rank has a GPU of its own"
