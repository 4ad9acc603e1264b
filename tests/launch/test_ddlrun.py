"""IBM ddlrun's lines, in the words of dlrun launch."""

from __future__ import annotations

import pytest

from dlrun.errors import DlrunError
from dlrun.launch.ddlrun import translate


def spelled(line: str, gpus: int = 4) -> str:
    return " ".join(translate(["-no_ddloptions", *line.split()], gpus, {"HOME": "/h"})[0])


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("python t.py --lr 1", "-n 4 --per-node 4 t.py --lr 1"),
        ("-H n1,n2 python3.6 -u t.py", "-n 8 --per-node 4 --hosts n1,n2 t.py"),
        ("--host n1,n2 --accelerators 2 python -m pkg.train", "-n 4 --per-node 2 --hosts n1,n2 -m pkg.train"),
        ("-accelerators=6 -nodes 2 t.py", "-n 12 --per-node 6 t.py"),
        ("-mode p:6x2x1x1 t.py", "-n 12 --per-node 6 t.py"),
        ("-H n1:3,n2:1 t.py", "-n 4 --hosts n1:3,n2:1 t.py"),
        ("-mpiarg --map-by=core t.py", "-n 4 --per-node 4 --native --map-by=core t.py"),
        ("-m b -v python t.py", "-n 4 --per-node 4 t.py"),
        ("-mode b:2x2 t.py", "-n 4 --per-node 2 t.py"),
        (
            "python -u -W ignore -O t.py -W x",
            "-n 4 --per-node 4 --env PYTHONWARNINGS=ignore --env PYTHONOPTIMIZE=1 t.py -W x",
        ),
        ("python -Werror -m pkg.t", "-n 4 --per-node 4 --env PYTHONWARNINGS=error -m pkg.t"),
        ("-H n1 bash run.sh", "-n 4 --per-node 4 --hosts n1 bash run.sh"),
        ("-x A=1 --x HOME -x NONE t.py -x 2", "-n 4 --per-node 4 --env A=1 --env HOME=/h t.py -x 2"),
    ],
)
def test_each_line_has_its_translation(line, ours):
    assert spelled(line) == ours


def test_a_dash_pair_before_the_line_is_passed_over():
    line = ["-no_ddloptions", "-H", "n1", "t.py"]
    assert translate(["--", *line], 4, {}) == translate(line, 4, {})


def test_the_mode_inside_ddlarg_counts_and_the_rest_of_it_is_told():
    words, notes = translate(["-ddlarg", "-mode r:4x2 -dump_iter 100", "t.py"], 1)
    assert words == ["-n", "8", "--per-node", "4", "--env", "DDL_OPTIONS=-mode r:4x2 -dump_iter 100", "t.py"]
    assert notes[0].startswith("-ddlarg -dump_iter 100: settings of DDL's own")
    assert notes[1].startswith("-mode r: chooses an algorithm of DDL's")


def test_racks_and_aisles_are_told_to_be_of_no_use():
    words, notes = translate(["-nodes", "2", "-racks", "2", "-aisles", "1", "-no_ddloptions", "t.py"], 4)
    assert words == ["-n", "16", "--per-node", "4", "t.py"]
    assert notes == ["racks and aisles are not used: dl_comm adds up within a node first, then over the network"]


def test_tcp_keeps_every_mpi_off_infiniband():
    for line in ("-tcp t.py", "-t t.py", "-mpiarg -pami_noib t.py"):
        words, _ = translate(line.split(), 2)
        assert "UCX_TLS=tcp,sm,self" in words and "OMPI_MCA_pml=ob1" in words and "FI_PROVIDER=tcp" in words


def test_a_rankfile_names_the_hosts_and_their_ranks(tmp_path):
    file = tmp_path / "ranks"
    file.write_text("#2.0\nrank 0=n1 slot=0:0-3\nrank 1=n1 slot=0:4-7\n\nrank 2=n2 slot=0:0-3\n")
    words, notes = translate(["-rf", str(file), "t.py"], 4)
    assert words == ["-n", "3", "--hosts", "n1:2,n2:1", "--env", "DDL_OPTIONS=-mode p", "t.py"]
    assert notes == ["the rankfile's slots are not used: each rank is given cores of its own, next to its GPU"]
    file.write_text("rank 0=n1 slot=0\nrank 1=n2 slot=0\nrank 2=n1 slot=1\n")
    with pytest.raises(DlrunError, match="places ranks on the hosts round-robin"):
        translate(["-rf", str(file), "t.py"], 4)
    file.write_text("rank 0=n1\nrang 1=n2\n")
    with pytest.raises(DlrunError, match=r"ranks, line 2: 'rang 1=n2' places no rank"):
        translate(["-rf", str(file), "t.py"], 4)


def test_words_of_spectrum_mpi_are_not_handed_to_another_mpi():
    line = ["--mpiarg", "-gpu -x A='1 2' -mca btl tcp --aff=off --oversubscribe", "-mpiarg", "-prot", "t.py"]
    words, notes = translate([*line[:2], "-no_ddloptions", *line[2:]], 2)
    assert words[4:] == ["--native", "--oversubscribe", "--env", "A=1 2", "--env", "OMPI_MCA_btl=tcp", "t.py"]
    assert notes == ["-mpiarg -gpu --aff=off -prot: of Spectrum MPI's own; what it needs, give as --native"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("-aff bandwidth:default -report-bindings", "-report-bindings"),
        ("-intra vader -inter tcp --bind-to none", "--bind-to none"),
        ("-aff --map-by slot", "--map-by slot"),
        ("-entry libx.so --aff=off -disable_gdr -prot", ""),
        ("-stdio p --allow-run-as-root", "--allow-run-as-root"),
    ],
)
def test_neither_are_the_values_of_such_words(given, kept):
    words, notes = translate(["-mpiarg", given, "-no_ddloptions", "t.py"], 2)
    assert words == ["-n", "2", "--per-node", "2", *(["--native", kept] if kept else []), "t.py"]
    assert notes[0].endswith("of Spectrum MPI's own; what it needs, give as --native")


def test_ddl_options_are_set_from_the_mode_unless_the_line_forbids_it():
    def options(line: str) -> list[str]:
        return [word for word in translate(line.split(), 2)[0] if word.startswith("DDL_OPTIONS")]

    assert options("t.py") == ["DDL_OPTIONS=-mode p"]
    assert options("-m b t.py") == ["DDL_OPTIONS=-mode b"]
    assert options("--mode b:2x1 -ddloption -dbg_level=1 t.py") == ["DDL_OPTIONS=-mode b:2x1 -dbg_level=1"]
    assert options("--no_ddloptions t.py") == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("-np 2 t.py", "ddlrun has no option -np: it counts hosts"),
        ("-foo 1 t.py", "ddlrun has no option -foo"),
        ("-H n1,n2 -nodes 3 t.py", "-nodes x -racks x -aisles names 3 hosts, and -H 2"),
        ("-H n1,n2 -mode p:4x3 t.py", "-mode names 3 hosts, and -H 2"),
        ("-mode p:4x2 -accelerators 6 t.py", "-mode puts 4 on a host, and -accelerators 6"),
        ("-mode 4x2 t.py", "-mode 4x2 is no mode"),
        ("-accelerators x t.py", "-accelerators x is no number of them"),
        ("-H n1 -hostfile f t.py", "-host and -hostfile are both given"),
        ("-H n1", "no script is named"),
        ("-tcp python", "after python comes no script"),
        ("t.py", "no GPU is here to count, and -accelerators is not given"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(line, what):
    with pytest.raises(DlrunError) as caught:
        translate(line.split(), 0)
    assert what in caught.value.message


def test_on_the_command_line_it_really_launches(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "says.py").write_text(
        "import os, sys\nprint(os.environ['UCX_TLS'], os.environ['DDL_OPTIONS'], os.environ['A'], sys.argv[1:])\n"
    )
    theirs = ["-accelerators", "2", "-t", "-x", "A=b c", "-m", "b", "python", "says.py", "-mode", "x"]
    done = dlrun("--mpiexec", any_mpiexec, "--log-dir", "runs", "--ddlrun", *theirs)
    assert (done.returncode, done.stdout) == (0, "tcp,sm,self -mode b b c ['-mode', 'x']\n"), done.stderr
    assert (tmp_path / "runs/latest/rank-1.log").exists()


def test_a_scripts_own_option_of_that_name_is_the_scripts(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "says.py").write_text("import sys\nprint(sys.argv[1:])\n")
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "says.py", "--ddlrun", "-H")
    assert done.stdout == "['--ddlrun', '-H']\n", done.stderr
