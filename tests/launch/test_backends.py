"""Each backend's line, word by word."""

from __future__ import annotations

import sys

import pytest

from dlrun.launch.commands import command, library
from dlrun.launch.plan import Command, Host, LaunchPlan
from dlrun.launch.resolve import resolve
from dlrun.launch.site import Allocation, Launcher, Site

SHIM = [sys.executable, "-m", "dlrun.rank", "--spec", "runs/spec.json", "--", "train.py", "--lr", "0.1"]


NO_JOB = Allocation()


def site(allocation: Allocation = NO_JOB, **env: str) -> Site:
    return Site("login1", 1000, cores=16, cpus=32, gpus=0, allocation=allocation, env={"PATH": "/nowhere", **env})


def line(backend: str, where: Site | None = None, **options: object) -> Command:
    where = where or site()
    plan = LaunchPlan(("train.py", "--lr", "0.1"), backend=backend, run_dir="runs", **options)  # type: ignore
    return command(resolve(plan, where), where)


def words(backend: str, where: Site | None = None, **options: object) -> str:
    argv = line(backend, where, **options).argv
    assert argv[-len(SHIM) :] == SHIM
    return " ".join(argv[: -len(SHIM)])


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):  # type: ignore
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Site, "launchers", lambda self: iter(()))


SLURM = site(Allocation("slurm", "42", nodes=2, ranks=8))


def test_srun_in_a_job_spreads_the_ranks_over_its_nodes():
    assert words("srun", SLURM, ranks=8) == (
        "srun -N 2 -n 8 --ntasks-per-node=4 --cpu-bind=none -m block:block --kill-on-bad-exit=1 --wait=0 "
        "--unbuffered --input=none --export=ALL"
    )


def test_srun_restates_cores_and_leaves_all_gpus_visible():
    assert words("srun", SLURM, ranks=8, per_node=4, cores=7, gpus=1) == (
        "srun -N 2 -n 8 --ntasks-per-node=4 -c 7 --hint=nomultithread --cpu-bind=cores -m block:block "
        "--gpus-per-node=4 --kill-on-bad-exit=1 --wait=0 --unbuffered --input=none --export=ALL"
    )


def test_srun_restates_cores_that_the_job_was_given():
    where = site(Allocation("slurm", "42", nodes=2, ranks=8), SLURM_CPUS_PER_TASK="6")
    assert " --ntasks-per-node=4 -c 6 --cpu-bind=none -m " in words("srun", where)
    assert " -c 3 --hint=nomultithread " in words("srun", where, cores=3)


def test_srun_shows_all_gpus_also_where_the_job_asked_for_them_by_the_task():
    where = site(Allocation("slurm", "42", nodes=2, ranks=8), SLURM_GPUS_PER_TASK="a100:1", SLURM_GPU_BIND="x")
    assert " --gpus-per-node=4 " in words("srun", where)
    assert line("srun", where).unset == ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")


@pytest.mark.parametrize("backend", ["srun", "mpich", "openmpi"])
def test_in_a_slurm_job_no_start_waits_for_the_step_of_an_attempt_before_whose_node_was_lost(backend):
    again, first = (line(backend, SLURM, ranks=4, env=(("DLRUN_ATTEMPT", number),)) for number in "21")
    assert again.set["SLURM_OVERLAP"] == "1" and "SLURM_OVERLAP" not in first.set
    assert "SLURM_OVERLAP" not in line(backend, ranks=4, env=(("DLRUN_ATTEMPT", "2"),)).set


def test_srun_names_the_hosts():
    assert "-w n1,n2" in words("srun", SLURM, ranks=4, hosts=(Host("n1"), Host("n2")))


def test_srun_with_uneven_hosts_names_the_host_of_each_rank():
    hosts = (Host("n1", 3), Host("n2", 1))
    assert " -n 4 --cpu-bind=none -m arbitrary -w n1,n1,n1,n2 --kill" in words("srun", SLURM, ranks=4, hosts=hosts)


def test_srun_with_hosts_gives_each_its_share():
    assert " -N 2 -n 5 --ntasks-per-node=3 " in words("srun", SLURM, ranks=5, hosts=(Host("n1"), Host("n2")))


@pytest.mark.parametrize("backend", ["aprun", "pals", "flux"])
def test_uneven_hosts_are_refused_where_the_launcher_cannot(backend):
    from dlrun.errors import DlrunError

    with pytest.raises(DlrunError, match=f"{backend} starts the same number of ranks on every host"):
        words(backend, ranks=4, hosts=(Host("n1", 3), Host("n2", 1)))


def test_jsrun_refuses_hosts_instead_of_running_elsewhere():
    from dlrun.errors import DlrunError

    with pytest.raises(DlrunError, match="jsrun takes no hosts"):
        words("jsrun", ranks=4, hosts=(Host("n1"), Host("n2")))


def test_pals_counts_hardware_threads_where_the_node_can_be_asked():
    inside = site(Allocation("pbs", "7", nodes=2, ranks=8))
    assert words("pals", inside, ranks=8, cores=4) == "mpiexec -n 8 --ppn 4 --depth 8 --cpu-bind depth"


def test_pals_with_cores():
    assert words("pals", ranks=8, per_node=4, cores=8) == "mpiexec -n 8 --ppn 4 --depth 8 --cpu-bind depth"


def test_pals_without_cores_leaves_binding_to_the_shim():
    hosts = (Host("x1"), Host("x2"))
    assert words("pals", ranks=8, hosts=hosts) == "mpiexec -n 8 --ppn 4 --cpu-bind none --hosts x1,x2"


def test_jsrun_has_a_resource_set_for_each_rank():
    assert words("jsrun", ranks=8, per_node=4, cores=7, gpus=1) == (
        "jsrun -n 8 -r 4 -a 1 -c 7 -g 1 -b packed:7 -d packed -X 1"
    )


def test_jsrun_has_a_resource_set_for_each_node_where_no_cores_are_said():
    assert words("jsrun", ranks=8, per_node=4) == "jsrun -n 2 -r 1 -a 4 -c ALL_CPUS -g ALL_GPUS -b none -d packed -X 1"
    assert words("jsrun", ranks=7, per_node=4).startswith("jsrun -n 7 -r 4 -a 1 -c 1 ")


def test_flux_takes_whole_nodes_where_no_cores_are_said():
    assert words("flux", ranks=8, per_node=4, gpus=1) == (
        "flux run -N 2 -n 8 --exclusive -o cpu-affinity=off -o gpu-affinity=off -o exit-on-error -u"
    )


def test_flux_is_asked_for_its_nodes_and_spreads_the_ranks_over_them(monkeypatch):
    monkeypatch.setattr(Site, "launchers", lambda self: iter([Launcher("/bin/flux", "flux", why="an allocation")]))
    monkeypatch.setattr("dlrun.launch.resolve.flux_nodes", lambda flux: 4)
    where = site(Allocation("flux", "f1"))
    assert words("auto", where, ranks=8).startswith("/bin/flux run -N 4 -n 8 --exclusive ")
    monkeypatch.setattr("dlrun.launch.resolve.flux_nodes", lambda flux: 0)
    assert words("auto", where, ranks=8).startswith("/bin/flux run -n 8 -o cpu-affinity=off ")


def test_no_launcher_at_all_starts_no_more_than_one_rank():
    from dlrun.errors import DlrunError

    with pytest.raises(DlrunError, match="--backend local starts one rank, and -n asks for 2"):
        words("local", ranks=2)


def test_flux_names_nodes_cores_and_gpus():
    assert words("flux", ranks=8, per_node=4, cores=6, gpus=1) == (
        "flux run -N 2 -n 8 -c 6 -o cpu-affinity=per-task -g 1 -o gpu-affinity=off -o exit-on-error -u"
    )


def test_intel_is_told_to_respect_the_ranks_per_node():
    where = site(Allocation("pbs", "7", nodes=2, ranks=8), I_MPI_PMI_LIBRARY="/usr/lib64/libpmi.so")
    assert words("intel", where, ranks=8) == "mpiexec.hydra -n 8 -ppn 4"
    chosen = line("intel", where, ranks=8)
    assert chosen.set["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] == "0"
    assert "I_MPI_PMI_LIBRARY" in chosen.unset


def test_aprun_names_the_nodes():
    assert words("aprun", ranks=4, hosts=(Host("20"), Host("21"))) == "aprun -n 4 -N 2 -cc none -L 20,21 -b"


def test_words_for_the_launcher_itself_come_last_before_the_shim():
    assert words("mpich", ranks=2, native=("-iface", "ib0")).endswith(" -bind-to none -iface ib0")


def test_srun_takes_the_ranks_of_the_job_when_none_are_given():
    assert " -n 8 " in words("srun", SLURM)


def test_aprun_with_cores_binds_them_in_depth():
    assert words("aprun", ranks=64, per_node=4, cores=8) == "aprun -n 64 -N 4 -d 8 -j 1 -cc depth -b"


def test_aprun_without_cores_binds_nothing():
    assert words("aprun", ranks=4, per_node=1) == "aprun -n 4 -N 1 -cc none -b"


def test_mpich_on_one_machine():
    assert words("mpich", ranks=4) == "mpiexec -n 4 -bind-to none"


def test_mpich_with_uneven_hosts():
    hosts = (Host("n1", 3), Host("n2", 1))
    assert words("mpich", ranks=4, hosts=hosts) == "mpiexec -n 4 -hosts n1:3,n2:1 -bind-to none"


def test_openmpi_on_one_machine():
    assert words("openmpi", ranks=4) == "mpirun -n 4 --bind-to none"


def test_openmpi_is_told_when_there_are_more_ranks_than_cores():
    assert words("openmpi", ranks=17) == "mpirun -n 17 --map-by :OVERSUBSCRIBE --bind-to none"


def test_openmpi_carries_the_search_paths_to_other_hosts():
    assert words("openmpi", ranks=3, hosts=(Host("n1", 2), Host("n2", 1))) == (
        "mpirun -n 3 --host n1:2,n2:1 --bind-to none -x PATH"
    )


def test_openmpi_gets_leave_to_run_as_root_only_as_root():
    assert line("openmpi", ranks=2).set == {}
    root = Site("login1", 0, 16, 32, 0, Allocation(), {})
    assert line("openmpi", root, ranks=2).set == {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def test_a_surrounding_launchers_variables_are_dropped():
    inside = site(PMI_RANK="3", PMI_SIZE="8", OMPI_COMM_WORLD_RANK="1", OMPI_MCA_btl="tcp")
    assert line("mpich", inside, ranks=2).unset == ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_SIZE")


def test_a_library_of_the_other_family_is_refused(monkeypatch):
    from dlrun.errors import DlrunError

    monkeypatch.setattr("dlrun.launch.commands.family_of", lambda path: "openmpi")
    with pytest.raises(DlrunError, match="is of the openmpi family, and mpiexec is mpich"):
        library(Launcher("mpiexec", "mpich"), site(DL_COMM_MPI_LIBRARY="/opt/libmpi.so.40"))
