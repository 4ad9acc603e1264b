"""Scripts whose structure is put together at random show the serial numbers on ranks, or the port tells of them.

``structures_at_random.py`` makes them. They run one after another in the same processes. ``DLRUN_FUZZ_STRUCTURES``
sets how many are tried, ``DLRUN_FUZZ_SEED`` the first one's seed. What is told of though it is right, and what is
refused, is few enough.
"""

import os

import pytest
from running import started
from structures_at_random import script
from test_placement import HERE, _by_name
from test_rules import alike

from dlrun.errors import DlrunError
from dlrun.port import Options, port

FIRST = int(os.environ.get("DLRUN_FUZZ_SEED", "0"))
SCRIPTS = int(os.environ.get("DLRUN_FUZZ_STRUCTURES", "40"))
RUN = str(HERE / "one_by_one.py")


@pytest.mark.parametrize("batch", ["local", "global"])
def test_each_script_shows_the_serial_numbers_or_its_port_tells(batch, tmp_path) -> None:
    serial, ported = tmp_path / "serial", tmp_path / "ported"
    serial.mkdir()
    ported.mkdir()
    doubts = {}
    for seed in range(FIRST, FIRST + SCRIPTS):
        name, text = f"s{seed}", script(seed)
        try:
            made = port(text, Options(batch=batch, lr_scaling="none"))
        except DlrunError:
            continue  # with the global batch: the script draws its batches by itself
        doubts[name] = [doubt.why for doubt in made.doubts]
        serial.joinpath(f"{name}.py").write_text(text)
        ported.joinpath(f"{name}.py").write_text(made.text.replace("dl.finalize()", "pass"))
    assert len(doubts) > SCRIPTS // 2
    alone, mine = _by_name(started(serial, [RUN, "."])), _by_name(started(ported, [RUN, "."], 2))
    assert alone.keys() == mine.keys() == doubts.keys()
    right = {name for name in doubts if alike(alone[name], mine[name])}
    untold = {name: (alone[name], mine[name]) for name in doubts if name not in right and not doubts[name]}
    assert untold == {}
    assert len(right) > len(doubts) // 2
