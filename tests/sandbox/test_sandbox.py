"""A folder for a run that looks like the user's, and what is left of it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dlrun.sandbox.place import clear, lay_out, scratch


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "x.csv").write_text("1,2")
    (source / "train.py").write_text("1")
    (source / "runs").mkdir()
    return source


def test_the_scratch_folder_looks_like_the_users_and_is_another(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    scratch(source, target, source / "runs")
    assert (target / "data" / "x.csv").read_text() == "1,2"
    assert not (target / "data").is_symlink()
    assert not (target / "runs").exists()


def test_the_logs_of_earlier_runs_are_one_link_however_many_they_are(source: Path, tmp_path: Path) -> None:
    run = source / "dlrun-runs" / "20260102-030405-6"
    run.mkdir(parents=True)
    (run / "rank-0.log").write_text("epoch 1")
    scratch(source, tmp_path / "target", source / "runs")
    assert (tmp_path / "target" / "dlrun-runs").readlink() == source / "dlrun-runs"


def test_what_a_run_wrote_is_left_and_nothing_else(source: Path) -> None:
    root = source / "runs" / "files"
    place = lay_out(source, root, source / "runs")
    (place / "data" / "new.csv").write_text("3")
    (place / "latest").symlink_to("data/new.csv")
    (place / "made.py").write_text("2")
    (place / "__pycache__").mkdir()
    (place / "__pycache__" / "train.pyc").write_text("")
    clear(source, place, root)
    assert {str(path.relative_to(place)) for path in place.rglob("*")} == {"data", "data/new.csv", "latest", "made.py"}
    assert (source / "data" / "x.csv").read_text() == "1,2"
    assert (source / "train.py").read_text() == "1"


def test_nothing_is_left_of_a_run_that_wrote_nothing(source: Path) -> None:
    root = source / "runs" / "files"
    clear(source, lay_out(source, root, source / "runs"), root)
    assert not root.exists()


WATCHED = """import sys
from dlrun.sandbox import loose
root, told = sys.argv[1], []
loose.watch(root, lambda name, how, was: told.append(name.rpartition("/")[2]))
loose.own(f"{root}/train.py", root)
open(f"{root}/made.txt", "w").close()
print(*told)
"""


def test_the_lock_of_a_scratch_folder_is_no_file_that_a_run_wrote(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    scratch(source, target, source / "runs")
    told = subprocess.run([sys.executable, "-c", WATCHED, str(target)], capture_output=True, text=True, check=True)
    assert "made.txt" in told.stdout and ".lock" not in told.stdout


TIDIES = """import os, shutil, sys
from dlrun.sandbox import loose
root, told = sys.argv[1], []
loose.watch(root, lambda name, how, was: told.append((how, name.removeprefix(root + "/"))))
os.chdir(root)
os.makedirs("large", exist_ok=True)
print(os.listdir("large"))
open("large/new.txt", "w").close()
os.remove("old.txt")
shutil.rmtree("data")
print(sorted(os.listdir("large")), os.path.exists("old.txt"), os.path.exists("data"), ("remove", "data/x.csv") in told)
"""


DATABASE = """import sqlite3, sys
from dlrun.sandbox import loose
root, told = sys.argv[1], []
loose.watch(root, lambda name, how, was: told.append(name.rpartition("/")[2]))
for name, uri in (("r.db", False), ("file:r.db?mode=ro", True), (":memory:", False), ("w.db", False)):
    kept = sqlite3.connect(name, uri=uri)
    if name in (":memory:", "w.db"):
        kept.execute("create table t (x)")
        kept.execute("insert into t values (1)")
        kept.commit()
    kept.execute("select x from t").fetchall()
print(*told)
"""


def test_a_database_is_written_where_a_statement_changes_it(source: Path, tmp_path: Path) -> None:
    root, mine = tmp_path / "root", source / "r.db"
    root.mkdir()
    with closing(sqlite3.connect(mine)) as made:
        made.execute("create table t (x)")
    (root / "r.db").symlink_to(mine)
    done = subprocess.run([sys.executable, "-c", DATABASE, str(root)], capture_output=True, text=True, cwd=root)
    assert (done.stdout.split(), done.stderr) == (["w.db", "w.db"], "")
    assert not (root / "r.db").is_symlink()


HDF5 = """import sys
from dlrun.sandbox import loose
root, told = sys.argv[1], []
loose.watch(root, lambda name, how, was: told.append(name.rpartition("/")[2]))
import h5py
for name, mode in (("mine.h5", "r"), ("mine.h5", "w"), ("kept.h5", "a"), ("new.h5", "w")):
    with h5py.File(name, mode) as file:
        mode == "r" or file.attrs.create("y", 1.0)
print(*told)
"""


def test_an_hdf5_file_of_the_users_is_read_in_its_place_and_written_apart(source: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install h5py")
    root = tmp_path / "root"
    root.mkdir()
    for name in ("mine.h5", "kept.h5"):
        with h5py.File(source / name, "w") as file:
            file.attrs["x"] = 0.5
        (root / name).symlink_to(source / name)
    done = subprocess.run([sys.executable, "-c", HDF5, str(root)], capture_output=True, text=True, cwd=root)
    assert (done.stdout.split(), done.stderr) == (["mine.h5", "kept.h5", "new.h5"], "")
    for folder, name, keys in ((source, "mine.h5", "x"), (root, "mine.h5", "y"), (root, "kept.h5", "xy")):
        with h5py.File(folder / name, "r") as file:
            assert "".join(sorted(file.attrs)) == keys


WEIGHTS = """import sys
from dlrun.sandbox import loose
root, told = sys.argv[1], []
loose.watch(root, lambda name, how, was: told.append(name.rpartition("/")[2]))
import numpy as np
from safetensors.numpy import load_file, save_file
kept = load_file("mine.safetensors")
save_file({"y": np.ones(2)}, "mine.safetensors")
save_file(kept, filename="new.safetensors")
print(*told)
"""


def test_weights_that_a_library_in_rust_writes_are_noticed(source: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    root, mine = tmp_path / "root", source / "mine.safetensors"
    root.mkdir()
    save_file({"x": np.zeros(3)}, mine)
    (root / mine.name).symlink_to(mine)
    done = subprocess.run([sys.executable, "-c", WEIGHTS, str(root)], capture_output=True, text=True, cwd=root)
    assert (done.stdout.split(), done.stderr) == (["mine.safetensors", "new.safetensors"], "")
    assert [[*load_file(file)] for file in (mine, root / mine.name, root / "new.safetensors")] == [["x"], ["y"], ["x"]]


def test_a_folder_that_is_there_stays_one_and_what_a_run_removes_is_gone_for_it_alone(
    source: Path, tmp_path: Path
) -> None:
    large, target = tmp_path / "large", tmp_path / "target"
    large.mkdir()
    (large / "a.txt").write_text("1")
    (source / "large").symlink_to(large)
    (source / "old.txt").write_text("1")
    scratch(source, target, source / "runs")
    done = subprocess.run([sys.executable, "-c", TIDIES, str(target)], capture_output=True, text=True, check=False)
    assert done.stdout == "['a.txt']\n['a.txt', 'new.txt'] False False True\n", done.stderr
    assert (source / "old.txt").exists() and (source / "data" / "x.csv").exists()
    assert [entry.name for entry in large.iterdir()] == ["a.txt"]
