"""Each example's distributed script is exactly what the porter makes of the serial one."""

from pathlib import Path

import pytest

from dlrun.port import port

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", sorted(p.parent.name for p in EXAMPLES.glob("*/dist.py")))
def test_the_ported_example_is_what_the_porter_makes(name):
    folder = EXAMPLES / name
    assert port((folder / "serial.py").read_bytes()).text == (folder / "dist.py").read_text()
