"""The man pages that wheels bring."""

from dlrun.cli import VERBS
from dlrun.cli.man_pages import write


def test_each_verb_has_a_page_with_what_its_help_says(tmp_path):
    written = {file.name for file in write(tmp_path)}
    assert written >= {"dlrun.1", "dlrun-bench-allreduce.1", *(f"dlrun-{verb}.1" for verb in VERBS)}
    launch = (tmp_path / "dlrun-launch.1").read_text()
    assert "launch \\- Run a script on many ranks, under the launcher that is here" in launch
    assert "How many ranks; else what the hosts take" in launch
    assert "dlrun-port(1)" in (tmp_path / "dlrun.1").read_text()
