"""What `dlrun doctor` finds."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec

from dlrun import doctor
from dlrun.launch.site import look


def test_it_finds_a_word_for_everything_and_prints_json():
    done = subprocess.run(
        [sys.executable, "-m", "dlrun", "doctor", "--json"], capture_output=True, text=True, timeout=240, check=False
    )
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    names = {"python", "cores", "GPUs", "/dev/shm", "batch job", "frameworks", "dl_comm", "launcher", "2 ranks"}
    assert names <= set(found)
    assert done.returncode == any(finding["state"] == "bad" for finding in found.values())
    assert all(finding["todo"] for finding in found.values() if finding["state"] == "bad")


def test_an_unrelated_package_of_the_same_import_name_is_told_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "DLcomm-0.2.dist-info").mkdir()
    (tmp_path / "DLcomm-0.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: DLcomm\nVersion: 0.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finding = doctor._dl_comm(find_spec("dl_comm"))
    assert (finding.state, finding.what) == ("bad", "DLcomm 0.2 is installed and brings its own dl_comm")
    assert "pip uninstall DLcomm" in finding.todo


def test_a_folder_called_dl_comm_that_hides_dlruns_is_told_by_its_path(tmp_path):
    (tmp_path / "dl_comm").mkdir()
    (tmp_path / "dl_comm" / "__init__.py").write_text("raise ImportError('not this one')")
    finding = doctor._dl_comm(PathFinder.find_spec("dl_comm", [str(tmp_path)]))
    assert finding.state == "bad"
    assert finding.what == f"the one that Python finds, {tmp_path / 'dl_comm' / '__init__.py'}, is not dlrun's"


def test_two_masks_for_amd_gpus_are_bad():
    site = look({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"})
    finding = doctor._gpus(site)
    assert finding.state == "bad" and finding.todo == "unset all but ROCR_VISIBLE_DEVICES"


def test_a_torch_that_can_use_none_of_the_gpus_is_bad(tmp_path, monkeypatch):
    cuda = "def is_available():\n    import warnings\n    warnings.warn('The driver is too old (found 12040). Go to')\n"
    for name, version, word in (
        ("cpu", "cuda = hip = None\n", "it is built for the CPU"),
        ("old", "cuda, hip = '13.0', None\n", "The driver is too old (found 12040)"),
    ):
        package = tmp_path / name / "torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("from torch import cuda, version\n__version__ = '2.13.0'\n")
        (package / "version.py").write_text(version)
        (package / "cuda.py").write_text(cuda if name == "old" else "def is_available(): return False\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / name))
        finding = doctor._torch_on_gpus(4)
        assert (finding.state, finding.what) == ("bad", f"torch 2.13.0 can use none of the 4: {word}")
        assert "built for them" in finding.todo


def test_a_library_that_is_no_mpi_is_bad(tmp_path):
    (tmp_path / "libmpi.so").write_bytes(b"no library at all")
    site = look({"DL_COMM_MPI_LIBRARY": str(tmp_path / "libmpi.so"), "PATH": ""})
    assert [f.state for f in doctor._launchers(site)][-1] == "bad"
