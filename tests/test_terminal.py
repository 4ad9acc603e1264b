"""What dlrun prints, on terminals and in pipes that do not take every letter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("encoding", "name", "shown"),
    [
        ("latin-1", "größe ✓ ✗ 1·2.py".encode(), "größe + x 1·2.py".encode("latin-1")),
        ("iso8859-5", "größe 1·2.py".encode(), b"gr??e 1-2.py"),
        ("utf-8", b"gr\xf6\xdfe.py", b"gr\xf6\xdfe.py"),  # no text: from a system of another encoding
    ],
)
def test_a_letter_that_cannot_be_shown_ends_nothing(tmp_path: Path, encoding: str, name: bytes, shown: bytes) -> None:
    script = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    script.touch()
    words = [sys.executable, "-m", "dlrun", "launch", "-n", "1", "--backend", "local", "--dry-run", script.name]
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_ends_nothing(tmp_path: Path, closed: str) -> None:
    (tmp_path / "says.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    words = [sys.executable, "-m", "dlrun", "launch", "-n", "1", "--backend", "local", "--log-dir", "run", "says.py"]
    line = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (b"" if " >&-" in f" {closed}" else b"out\n")
    assert sorted((tmp_path / "run" / "rank-0.log").read_text().split()) == ["err", "out"]
