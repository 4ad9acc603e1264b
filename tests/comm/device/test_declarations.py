"""What dl_comm says of CUDA's functions, against CUDA's own header; and its kernels, against CUDA's own assembler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from gpus import HERE

COMM = HERE.parents[2] / "comm"


def test_the_declarations_agree_with_cudas_header():
    headers = sorted(Path("/usr/local").glob("cuda*/include/cuda.h"))
    if not headers or shutil.which("c++") is None:
        pytest.skip("no CUDA toolkit (cuda.h) or no C++ compiler (c++) is here")
    include = [f"-I{headers[0].parent}", f"-I{COMM / 'src'}"]
    command = ["c++", "-std=c++17", "-fsyntax-only", *include, str(HERE / "declarations.cc")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("gpu", ["sm_75", "sm_80", "sm_90"])
def test_the_kernels_assemble(tmp_path, gpu):
    if shutil.which("ptxas") is None:
        pytest.skip("no assembler of CUDA's (ptxas) is here")
    text = (COMM / "src" / "device" / "kernels.cc").read_text().split('R"(')[1].split(')"')[0]
    source = tmp_path / "kernel.ptx"
    source.write_text(text)
    command = ["ptxas", f"-arch={gpu}", str(source), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
