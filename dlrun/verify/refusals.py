"""What is known not to be verifiable before anything runs, and which framework a port is of."""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path

from dlrun.errors import DlrunError, no_script
from dlrun.verify.trace import Run
from dlrun.verify.tracer.recorder import OURS

TRANSLATED = ("horovod", "ddl")
OTHER_FRAMEWORKS = ("jax", "flax", "mxnet", "paddle")


def refuse(serial: Path, port: Path, ranks: int, steps: int) -> None:
    """Raise ``DlrunError`` for what is known not to be verifiable before anything runs."""
    if ranks < 2:
        raise DlrunError(f"-n {ranks}: a port is proved on 2 ranks or more", "leave -n out, or give -n 2")
    if steps < 2:
        raise DlrunError(f"--steps {steps}: a fault can hide in one step", "give --steps 2 or more")
    for script in (serial, port):
        if not script.is_file():
            raise no_script(script)
    imports = _imports(serial)
    other = next((name for name in OTHER_FRAMEWORKS if name in imports), None)
    if other and not imports & {"torch", "tensorflow", "keras"}:
        raise DlrunError(
            f"{serial} trains with {other}: dlrun verify covers PyTorch, TensorFlow and Keras, and proves nothing here"
        )
    ported = _imports(port)
    if not ported.intersection(OURS):
        hint = f"dlrun port {serial} writes a port that does"
        if other := next((name for name in TRANSLATED if name in ported), None):
            hint = f"dlrun port --from {other} {port} translates its calls to dl_comm: verify what it writes"
        if imports.intersection(OURS):
            hint = f"the port comes second: dlrun verify {port} {serial}"
        raise DlrunError(f"{port} does not import dl_comm", hint)


def refuse_serial(serial: Path, run: Run) -> None:
    """Raise ``DlrunError`` where the serial script fails, does not come to its end, or makes no step."""
    if run.error:
        _, event = run.error
        said = f"{event['type']}: {event['message']}"
        if event["type"] == "SystemExit" and run.log.strip():  # argparse has printed why
            said = run.log.strip().splitlines()[-1]
        raise DlrunError(
            f"{serial} fails: {said} ({event['line']})",
            "verify compares with the serial script: make it run first (arguments go after --)",
        )
    if not run.root.ended:
        said = " ".join(run.log.strip().splitlines()[-2:])
        raise DlrunError(f"{serial} does not come to its end: {said or 'no progress'}")
    if not run.root.steps:
        raise DlrunError(
            f"{serial} made no step of an optimizer of PyTorch, Keras or TensorFlow",
            "verify follows those, and in PyTorch updates by hand; not fit() in a graph, say",
        )


def framework_of(port: Path) -> str:
    """Return which tracer a port needs: by the face of dl_comm that it imports, or its module does."""
    text = port.read_text(errors="replace")
    return "tensorflow" if "dl_comm.tensorflow" in text or "dl_comm.keras" in text else "torch"


def _imports(script: Path) -> set[str]:
    """Return the top-level names that a script imports."""
    with tokenize.open(script) as file:
        source = file.read()
    try:
        tree = ast.parse(source, str(script))
    except SyntaxError as error:
        raise DlrunError(f"{script}:{error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    return {name.split(".")[0] for name in names}
