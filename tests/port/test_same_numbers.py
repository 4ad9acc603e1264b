"""What ranks show of an epoch is what the serial script shows of the same samples, with the same parameters."""

from pathlib import Path

import pytest
from running import rounded, started

from dlrun.port import port

SCRIPTS = ("numbers_of_an_epoch.py", "numbers_from_functions.py", "numbers_that_decide.py", "numbers_that_are_kept.py",
           "numbers_of_parts.py", "numbers_in_objects.py")  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_two_ranks_show_the_serial_numbers(script, tmp_path) -> None:
    source = Path(__file__).with_name(script)
    (tmp_path / "dist.py").write_text(port(source.read_text()).text)
    shown, on_ranks = started(tmp_path, [str(source)]), started(tmp_path, ["dist.py"], ranks=2)
    assert len(shown.splitlines()) > 8
    for serial, mine in zip(shown.splitlines(), on_ranks.splitlines(), strict=True):
        assert rounded(mine) == rounded(serial)
