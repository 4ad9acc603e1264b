"""What scripts find that load the operators of IBM's DDL themselves."""

from __future__ import annotations

from pathlib import Path

from dlrun.launch.ddl import loads_operators, variables
from dlrun.launch.plan import LaunchPlan

LOADS = "import tensorflow as tf\nddl = tf.load_op_library('ddl_MDR.so')\n"


def plan(folder: Path, program: str, kind: str = "script") -> LaunchPlan:
    return LaunchPlan((program,), cwd=str(folder), kind=kind)


def test_a_script_that_names_the_library_is_one(tmp_path):
    (tmp_path / "t.py").write_text(LOADS)
    assert loads_operators(plan(tmp_path, "t.py"))
    assert not loads_operators(plan(tmp_path, "t.py", "command"))


def test_so_is_one_with_such_a_ddl_py_beside_it(tmp_path):
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "t.py").write_text("import ddl\n")
    assert not loads_operators(plan(tmp_path, "net/t.py"))
    (folder / "ddl.py").write_text(LOADS)
    assert loads_operators(plan(tmp_path, "net/t.py"))
    assert not loads_operators(plan(tmp_path, "net.t", "module"))
    assert loads_operators(plan(folder, "t", "module"))


def test_the_library_comes_before_what_is_looked_through_already():
    folder = variables({})["LD_LIBRARY_PATH"]
    assert (Path(folder) / "ddl_MDR.so").exists()
    assert variables({"LD_LIBRARY_PATH": "/a:/b"}) == {"LD_LIBRARY_PATH": f"{folder}:/a:/b"}


SAYS = """
import os  # ddl_MDR.so
names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
import dl_comm
dl_comm.init_mpi()
print([os.environ.get("OMPI_COMM_WORLD_" + name) for name in names], dl_comm.get_rank(), dl_comm.get_nranks())
print(os.environ["LD_LIBRARY_PATH"].split(":")[0].endswith("lib/ddl"))
"""


def test_under_every_launcher_a_rank_finds_its_place_where_open_mpi_tells_it(dlrun, mpiexec, tmp_path):
    (tmp_path / "says.py").write_text(SAYS)
    done = dlrun("-n", "2", "--mpiexec", mpiexec, "says.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['0', '2', '0', '2'] 0 2\nTrue\n"
