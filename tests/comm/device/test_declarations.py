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


def cuda_headers(*needed: str) -> Path:
    """The folder with cuda.h and all that is ``needed`` besides: PyTorch brings a part of the toolkit along."""
    places = [(Path("/usr/local"), "cuda*/include/cuda.h"), (Path("/usr/include"), "cuda.h")]
    places += [(Path(folder), "nvidia/*/include/cuda.h") for folder in sys.path]  # as the package index has it
    folders = [file.parent for folder, pattern in places for file in sorted(folder.glob(pattern))]
    found = [folder for folder in folders if all((folder / file).exists() for file in needed)]
    if not found or shutil.which("c++") is None:
        pytest.skip(f"no CUDA toolkit ({', '.join(('cuda.h', *needed))}) or no C++ compiler (c++) is here")
    return found[0]


def assembler() -> str:
    """CUDA's, on PATH or as the package index has it: in a package of its own, or in Triton's."""
    patterns = ("nvidia/*/bin/ptxas", "triton/backends/nvidia/bin/ptxas")
    packaged = [str(file) for folder in sys.path for pattern in patterns for file in Path(folder).glob(pattern)]
    found = [path for path in (shutil.which("ptxas"), *packaged) if path]
    if not found or shutil.which("c++") is None:
        pytest.skip("no assembler of CUDA's (ptxas) or no C++ compiler (c++) is here")
    return found[0]


def test_the_declarations_agree_with_cudas_header():
    compiles("declarations.cc", [cuda_headers()])


def test_the_declarations_agree_with_nccls_header():
    folders = [*(Path(folder) / "nvidia" / "nccl" / "include" for folder in sys.path), Path("/usr/include")]
    folder = next((folder for folder in folders if (folder / "nccl.h").exists()), None)
    if folder is None:
        pytest.skip("no nccl.h is here: pip install nvidia-nccl-cu12, or CUDA's PyTorch, brings one")
    compiles("nccl_declarations.cc", [folder, cuda_headers("cuda_runtime.h", "crt/host_config.h")])


@pytest.mark.parametrize("gpu", ["sm_75", "sm_80", "sm_90"])
def test_the_kernels_assemble(tmp_path, gpu):
    ptxas = assembler()
    program, source = tmp_path / "print.cc", tmp_path / "kernel.ptx"
    program.write_text('#include "device/kernels.cc"\n#include <cstdio>\nint main() { std::puts(dl::kernels); }\n')
    compiled = ["c++", "-std=c++17", f"-I{COMM / 'src'}", str(program), "-o", str(tmp_path / "print")]
    subprocess.run(compiled, check=True, timeout=100)
    source.write_text(subprocess.run([str(tmp_path / "print")], capture_output=True, text=True, check=True).stdout)
    command = [ptxas, f"-arch={gpu}", str(source), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
