"""What dl_comm says of CUDA's and NCCL's functions, against their headers; its kernels, against CUDA's assembler."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpus import HERE

COMM = HERE.parents[2] / "comm"


def compiles(source: str, headers: list[Path]) -> None:
    include = [f"-I{folder}" for folder in (*headers, COMM / "src", HERE)]
    command = ["c++", "-std=c++17", "-fsyntax-only", *include, str(HERE / source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def cuda_headers() -> Path:
    headers = sorted(Path("/usr/local").glob("cuda*/include/cuda.h"))
    if not headers or shutil.which("c++") is None:
        pytest.skip("no CUDA toolkit (cuda.h) or no C++ compiler (c++) is here")
    return headers[0].parent


def test_the_declarations_agree_with_cudas_header():
    compiles("declarations.cc", [cuda_headers()])


def test_the_declarations_agree_with_nccls_header():
    folders = [*(Path(folder) / "nvidia" / "nccl" / "include" for folder in sys.path), Path("/usr/include")]
    folder = next((folder for folder in folders if (folder / "nccl.h").exists()), None)
    if folder is None:
        pytest.skip("no nccl.h is here: pip install nvidia-nccl-cu12, or CUDA's PyTorch, brings one")
    compiles("nccl_declarations.cc", [folder, cuda_headers()])


@pytest.mark.parametrize("gpu", ["sm_75", "sm_80", "sm_90"])
def test_the_kernels_assemble(tmp_path, gpu):
    if shutil.which("ptxas") is None:
        pytest.skip("no assembler of CUDA's (ptxas) is here")
    program, source = tmp_path / "print.cc", tmp_path / "kernel.ptx"
    program.write_text('#include "device/kernels.cc"\n#include <cstdio>\nint main() { std::puts(dl::kernels); }\n')
    compiled = ["c++", "-std=c++17", f"-I{COMM / 'src'}", str(program), "-o", str(tmp_path / "print")]
    subprocess.run(compiled, check=True, timeout=100)
    source.write_text(subprocess.run([str(tmp_path / "print")], capture_output=True, text=True, check=True).stdout)
    command = ["ptxas", f"-arch={gpu}", str(source), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
