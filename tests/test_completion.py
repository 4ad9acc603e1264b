"""What shells complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_words_that_it_can_read(shell: str):
    line = [sys.executable, "-m", "dlrun", "completion", shell]
    text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert "_DLRUN_COMPLETE" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "found"),
    [("dlrun lau", "plain,launch"), ("dlrun launch --per", "plain,--per-node"), ("dlrun launch tr", "file,tr")],
)
def test_verbs_options_and_scripts_are_completed(words: str, found: str):
    dlrun = Path(sys.executable).with_name("dlrun")
    if not dlrun.exists():
        pytest.skip("no command dlrun beside this Python")
    asks = {"_DLRUN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([dlrun], env={**os.environ, **asks}, capture_output=True, text=True, check=False)
    assert found in done.stdout.split()
