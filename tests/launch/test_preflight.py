"""What is compared before the scripts start."""

from __future__ import annotations

from dlrun.launch.preflight import refusals, warnings


def fact(rank: int, **other: object) -> dict[str, object]:
    usual = {
        "rank": rank,
        "host": "n1",
        "python": "3.11.2",
        "dlrun": "0.1.0",
        "dl_comm": "ab12",
        "shm": 1 << 30,
        "gpus": [],
        "cpus": [0, 1, 2, 3],
    }
    return {**usual, **other}


def test_equal_ranks_pass():
    ranks = [fact(0), fact(1, host="n2")]
    assert refusals(ranks) == [] and warnings(ranks) == []


def test_another_build_of_dl_comm_on_one_node_is_refused_and_the_odd_one_named():
    ranks = [fact(0), fact(1), fact(2, host="n7", dl_comm="cd34")]
    assert refusals(ranks) == [
        "dl_comm (its compiled module's checksum) differs: rank 2 on n7 has cd34, the others ab12"
    ]


def test_ranks_on_fewer_nodes_than_the_job_has_are_told():
    ranks = [fact(0), fact(1), fact(2, host="n2")]
    assert warnings(ranks, 2) == []
    assert warnings(ranks, 4)[0].startswith("4 nodes are to run the ranks, and the launcher has put them on 2: n1, n2;")


def test_a_small_shared_memory_is_told_with_the_number():
    assert "n1: /dev/shm has 9 MB free" in warnings([fact(0, shm=9 << 20)])[0]


def test_more_ranks_than_gpus_are_told():
    ranks = [fact(i, gpus=["GPU-a", "GPU-b"]) for i in range(3)]
    assert warnings(ranks) == ["n1: 3 ranks share 2 GPUs; one rank for each is faster"]
    assert warnings([*ranks[:2], fact(2, gpus=["GPU-b", "GPU-a"])], local=True) == []  # told before the start
    assert "2 ranks share 1 GPU;" in warnings([fact(i, gpus=["GPU-a"]) for i in range(2)])[0]


def test_ranks_that_see_one_gpu_alone_are_told():
    assert "each rank sees its own GPU alone" in warnings([fact(0, gpus=["GPU-a"]), fact(1, gpus=["GPU-b"])])[0]
    assert warnings([fact(0, gpus=["GPU-a"]), fact(1, host="n2", gpus=["GPU-b"])]) == []


def test_all_ranks_on_one_cpu_are_told():
    assert "all 2 ranks may use CPU 5 only" in warnings([fact(0, cpus=[5]), fact(1, cpus=[5])])[0]
    assert warnings([fact(0, cpus=[5]), fact(1, cpus=[6])]) == []


def test_ranks_that_were_bound_to_the_same_cpus_are_named():
    ranks = [fact(0, cpus=[0, 1]), fact(1, cpus=[2, 3]), fact(2, cpus=[3, 4])]
    assert warnings(ranks)[0].startswith("n1: ranks 1 and 2 share CPU 3, ")
    assert warnings([fact(0, cpus=[0, 1]), fact(1, cpus=[2, 3])]) == []


def test_in_a_real_launch_the_facts_are_those_of_the_ranks(dlrun, any_mpiexec, tmp_path):
    import json

    (tmp_path / "x.py").write_text("")
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "--log-dir", "runs", "x.py")
    assert done.returncode == 0
    facts = json.loads((tmp_path / "runs/latest/ranks.json").read_text())
    assert [f["rank"] for f in facts] == [0, 1]
    assert refusals(facts) == []
    assert all(f["shm"] > 0 and f["cpus"] and f["python"].startswith("3.") for f in facts)


def test_more_cores_than_a_node_has_are_told():
    ranks = [fact(rank, host=f"n{1 + rank // 2}") for rank in range(4)]
    assert warnings(ranks, cores=2) == []
    assert [line.partition(":")[0] for line in warnings(ranks, cores=3)] == ["n1", "n2"]
    assert warnings(ranks, cores=3)[0].startswith(
        "n1: --cores 3 for 2 of the ranks needs 6 cores, and 4 CPUs are there"
    )
