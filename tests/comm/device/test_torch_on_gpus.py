"""dl_comm.torch with tensors on a GPU: the very checks of the CPU over the fake driver; more of them on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from gpus import HERE, aware_mpi, real_driver
from mpis import first_mpi
from on_gpus import FACES, checks_in, launched, said_on_a_real_gpu

HOOKS = "torch_hooks_on_gpu.py"
# What runs which way over the fake: two ranks share a GPU and go through the host, or have one each, or a node each.
STAGED, OWN, MPI = "the host, as DL_COMM_GPU_PATH says", "NCCL 2.21.5", "MPI, from GPU to GPU"
VARIABLES = {
    STAGED: {"DL_COMM_GPU_PATH": "staged"},
    OWN: {"OWN_GPU": "1"},
    MPI: {"DL_COMM_GPU_PATH": "mpi", "HOSTS": "a,b"},
}
OVER_THE_FAKE = {
    STAGED: ("torch_overlap.py", "torch_state.py", HOOKS),
    OWN: ("torch_gradients.py", "torch_situations.py", "torch_optimizer.py", HOOKS),
    MPI: ("torch_overlap.py",),
}
ON_A_REAL_GPU = ("torch_on_real_gpu.py",)
pytestmark = pytest.mark.timeout(900)  # the first check of a launch waits for all of them


@pytest.fixture(scope="session")
def said_over_the_fake(fake: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    @cache
    def run(path: str) -> str:
        libraries = {"DL_COMM_CUDA_LIBRARY": fake(), "DL_COMM_NCCL_LIBRARY": fake()}
        more = {"FAKE_CUDA_OWNS_ALL": "1", **libraries, **VARIABLES[path]}
        if path == MPI:
            (library,) = first_mpi().for_mpi4py().values()
            more["DL_COMM_MPI_LIBRARY"] = str(aware_mpi(tmp_path_factory.mktemp("aware"), library))
        return launched(2, HERE / "torch_as_if_on_gpu.py", *OVER_THE_FAKE[path], **more)

    return run


def checks_over_the_fake() -> list[tuple[str, str]]:
    """Every path with the names of its checks."""
    files = [(path, file) for path, files in OVER_THE_FAKE.items() for file in files]
    return [(path, name) for path, file in files for name in checks_in(HERE if file == HOOKS else FACES, (file,))]


@pytest.mark.parametrize(("path", "check"), checks_over_the_fake())
@pytest.mark.wide("MPI, from GPU to GPU", "the host, as DL_COMM_GPU_PATH says")
def test_as_on_the_cpu(said_over_the_fake, path, check):
    said = said_over_the_fake(path)
    assert f"passed {check}" in said.splitlines(), said[-8000:]
    assert "went over the GPU" in said
    assert f"dl_comm: arrays on GPUs are reduced by {path}" in said


def test_tensors_of_rocm_are_copied_to_the_host(monkeypatch):
    torch = pytest.importorskip("torch")
    from dl_comm import arrays, device
    from dl_comm.torch import gpu

    class OnGpu(torch.Tensor):
        """A tensor on a GPU, as ROCm's are, too: they say that they are CUDA's."""

        is_cuda, is_cpu = True, False

    tensor = torch.arange(3.0).as_subclass(OnGpu)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert gpu.is_on_gpu(tensor)
    assert device.is_on_gpu(tensor)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not gpu.is_on_gpu(tensor)
    assert not device.is_on_gpu(tensor)
    copied = []
    monkeypatch.setattr(OnGpu, "cpu", lambda self: copied.append(self) or torch.zeros(3), raising=False)
    assert not device.is_on_gpu(arrays.fresh(tensor))
    assert len(copied) == 1


@pytest.mark.parametrize(("n", "path"), [(1, "auto"), (2, "auto"), (4, "auto"), (2, "staged"), (4, "staged")])
@pytest.mark.parametrize("check", checks_in(HERE, ON_A_REAL_GPU))
def test_on_a_real_gpu(check, n, path):
    real_driver()
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch was built without CUDA")
    said = said_on_a_real_gpu(n, path, *ON_A_REAL_GPU)
    assert f"passed {check}" in said.splitlines(), said[-8000:]
