"""dl_comm's collectives, compiled with each sanitizer, with threads as ranks: ``nox -s sanitize`` runs this."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STOP = {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1", "TSAN_OPTIONS": "halt_on_error=1"}


@pytest.mark.timeout(1600)  # a minute where nothing else runs
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_ranks_as_threads_are_right_under_the_sanitizer(sanitizer):
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    build = str(ROOT / "build" / f"sanitize-{sanitizer.split(',')[0]}")
    options = ["-DDL_PYTHON=OFF", "-DDL_TESTS=ON", "-DDL_WERROR=ON", f"-DDL_SANITIZE={sanitizer}"]
    options += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    subprocess.run(["cmake", "-S", str(ROOT / "comm"), "-B", build, *options], check=True, timeout=60)
    subprocess.run(["cmake", "--build", build, "-j2", "--target", "ranks_as_threads"], check=True, timeout=900)
    ended = subprocess.run(
        [f"{build}/ranks_as_threads"],
        env={**os.environ, **STOP},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.stdout == "0 wrong\n", ended.stdout
    assert ended.returncode == 0
