"""What ranks show of an epoch is what the serial script shows of the same samples, with the same parameters."""

from pathlib import Path

import pytest
from running import rounded, started

from dlrun.port import port

SCRIPTS = (
    "numbers_of_an_epoch.py",
    "numbers_from_functions.py",
    "numbers_that_decide.py",
    "numbers_that_are_kept.py",
    "numbers_of_parts.py",
    "numbers_in_objects.py",
    "numbers_of_iterations.py",
    "numbers_of_samples.py",
    "numbers_in_structures.py",
    "numbers_of_positions.py",
    "numbers_of_meters.py",
    "numbers_of_own_classes.py",
    "numbers_beside_counts.py",
    "numbers_of_keys.py",
    "numbers_of_entries.py",
    "numbers_of_chosen.py",
    "numbers_of_one_of_two_loaders.py",
    "numbers_of_running_accuracies.py",
    "numbers_of_named_batches.py",
)


def shown_by(script: str, folder: Path) -> list[tuple[str, str]]:
    """The lines of the serial script, each beside that of its port on two ranks."""
    source = Path(__file__).with_name(script)
    (folder / "dist.py").write_text(port(source.read_text()).text)
    shown, on_ranks = started(folder, [str(source)]), started(folder, ["dist.py"], ranks=2)
    return list(zip(shown.splitlines(), on_ranks.splitlines(), strict=True))


@pytest.mark.parametrize("script", SCRIPTS)
def test_two_ranks_show_the_serial_numbers(script, tmp_path) -> None:
    lines = shown_by(script, tmp_path)
    assert len(lines) > 8
    for serial, mine in lines:
        assert rounded(mine) == rounded(serial)


def test_arrays_that_grow_or_are_made_late_are_not_doubted() -> None:
    names = ("an_epoch", "iterations", "chosen")
    for script in ("numbers_in_objects.py", *(f"numbers_of_{name}.py" for name in names)):
        doubts = port(Path(__file__).with_name(script).read_text()).doubts
        assert not [doubt for doubt in doubts if doubt.name != "rate-may-not-suit"]


def test_arrays_that_begin_with_what_memory_holds_begin_with_zeros_where_ranks_add_them_up() -> None:
    source = Path(__file__).with_name("numbers_in_structures.py").read_text()
    assert source.count("empty(") == 2 and "empty_like(Y).to(" in source
    text = port(source).text
    assert "torch.zeros(96), np.zeros((96, 1), dtype=np.float32), torch.zeros_like(Y).to(" in text
    named = source.replace("np.empty(", "empty(").replace(
        "import numpy as np", "import numpy as np\nfrom numpy import empty"
    )
    assert [d.name for d in port(named).doubts if d.danger == "medium"] == ["local-number"]
