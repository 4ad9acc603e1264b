"""The C API: the example program, compiled as C11 against the installed library, alone and under mpiexec."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "comm" / "example" / "average.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) on PATH")
    asked = subprocess.run(
        [sys.executable, "-m", "dl_comm", "--cflags", "--libs"], capture_output=True, text=True, check=True
    )
    built = tmp_path_factory.mktemp("c") / "average"
    strict = ["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    subprocess.run(["cc", *strict, str(EXAMPLE), *asked.stdout.split(), "-o", str(built)], check=True)
    return built


def test_alone_it_is_rank_0_of_1(program):
    ended = subprocess.run([program], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.stdout, ended.returncode) == ("rank 0 of 1: the mean is 0.5\n", 0)


def test_towers_and_ranks_are_averaged_under_each_mpi(program, job, each_mpi):
    ended = job(each_mpi, 3, [str(program)])
    assert ended.lines("rank") == [f"rank {rank} of 3: the mean is 2.5" for rank in range(3)], ended.output
    assert ended.code == 0


def test_the_folder_of_the_plugin_has_its_examples_header_library_and_a_wheel(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    shell = f"""
        eval "$({sys.executable} -m dl_comm --env)" && cd "$CRAYPE_ML_PLUGIN_BASEDIR" && pwd
        ls examples/torch_mnist/serial.py include/dl_comm.h lib/libdl_comm.so wheel/*.whl ddl-tensorflow/lib/ddl_MDR.so
        ls "${{LD_LIBRARY_PATH%:/there before}}/ddl_MDR.so"
    """
    monkeypatch.setenv("LD_LIBRARY_PATH", "/there before")
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[0])
    asked = subprocess.run([sys.executable, "-m", "dl_comm", "--basedir"], capture_output=True, text=True, check=True)
    assert (asked.stdout.strip(), folder.parent.parent) == (str(folder), tmp_path / "a cache")
    (wheel,) = (folder / "wheel").iterdir()
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "there"), wheel]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    there = {file.name for file in (tmp_path / "there").iterdir()}
    assert "dl_comm" in there and next((tmp_path / "there/dl_comm").glob("_core*.so")).exists(), there


WRONG = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.dl_comm_last_error.restype = ctypes.c_char_p
assert lib.dl_comm_init() == 0
one = (ctypes.c_float * 2)(1, 2)
def call(counts, lengths, data):
    arrays = (ctypes.c_void_p * 1)(data)
    row, types = (ctypes.c_int * 1)(lengths), (ctypes.c_int * 1)(1)
    towers = (ctypes.c_void_p * 2)(*[ctypes.addressof(arrays)] * 2)
    rows, kinds = ((ctypes.c_void_p * 2)(*[ctypes.addressof(x)] * 2) for x in (row, types))
    code = lib.dl_comm_gradients(towers, rows, kinds, (ctypes.c_int * 2)(*counts), 2, 0)
    return lib.dl_comm_last_error().decode() if code else "ok"
here = ctypes.addressof(one)
for what in ((1, 1), 2, here), ((1, 0), 2, here), ((0, 1), 2, here), ((-1, -1), 2, here), ((1, 1), -2, here), \\
        ((1, 1), 2, None), ((1, 1), 0, None):
    print(call(*what))
print(lib.dl_comm_average(None, ctypes.c_int64(3)) and lib.dl_comm_last_error().decode())
"""


def test_what_a_program_passes_wrongly_is_an_error_and_no_crash():
    asked = subprocess.run([sys.executable, "-m", "dl_comm", "--libs"], capture_output=True, text=True, check=True)
    folder = next(word[2:] for word in asked.stdout.split() if word.startswith("-L"))
    words = [sys.executable, "-c", WRONG, f"{folder}/libdl_comm.so"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "ok",
        "tower 1 has 0 arrays, tower 0 has 1; every tower holds the same arrays",
        "tower 1 has 1 arrays, tower 0 has 0; every tower holds the same arrays",
        "tower 0 has -1 arrays",
        "array 0 of tower 0 has length -2",
        "array 0 of tower 0 is NULL",
        "ok",
        "the array is NULL",
    ], done.stderr


def test_a_cmake_project_finds_the_package(tmp_path):
    if not (shutil.which("cmake") and shutil.which("make")):
        pytest.skip("no cmake or no make on PATH")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(one C)\nfind_package(dl_comm REQUIRED)\n"
        f"add_executable(one {EXAMPLE})\ntarget_link_libraries(one dl_comm::dl_comm)\n"
    )
    where = subprocess.run([sys.executable, "-m", "dl_comm", "--cmakedir"], capture_output=True, text=True, check=True)
    build = tmp_path / "build"
    configure = ["cmake", "-S", str(tmp_path), "-B", str(build), f"-Ddl_comm_DIR={where.stdout.strip()}"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(build)], check=True, capture_output=True)
    ended = subprocess.run([build / "one"], capture_output=True, text=True, timeout=30, check=False)
    assert ended.stdout == "rank 0 of 1: the mean is 0.5\n"
