"""What a bench prints follows from its samples."""

import json
from pathlib import Path

import pytest

from dlrun.bench.cases import Case
from dlrun.bench.compare import comparison
from dlrun.bench.live import LiveTable
from dlrun.bench.result import Bench, Cell, from_json, percentile, read, summary, to_json
from dlrun.bench.table import aligned, seconds_as_text, significant
from dlrun.errors import DlrunError

MB = 2**20


def bench(factor: float = 1.0, wrong: int = 0, dtype: str = "float32") -> Bench:
    """1 MB on 4 ranks: dl_comm 0.2 ms, MPI 0.4 ms, gloo 1 ms, a memcpy 0.1 ms; `factor` slows dl_comm."""
    times = {"dl_comm": 2e-4 * factor, "MPI": 4e-4, "gloo": 1e-3, "memcpy": 1e-4}
    cells = [Cell("1 MB", 4, MB, way, (t, t * 1.1, t * 0.9), wrong if way == "gloo" else 0) for way, t in times.items()]
    return Bench(dtype, {"cpu": "a CPU", "mpi": "an MPI", "cores": 2}, {"horovod": "not installed"}, tuple(cells))


def table(bench: Bench) -> list[str]:
    """The lines that appear while the cells of one case come in."""
    lines: list[str] = []
    first = bench.cells[0]
    case = Case(first.case, (first.nbytes // 4,))
    live = LiveTable([case], first.ranks, bench.dtype, "median", lambda text: lines.extend(text.splitlines()))
    live.take({"event": "start", "ways": [cell.way for cell in bench.cells]})
    for cell in bench.cells:
        live.take({"event": "cell", "case": cell.case, "way": cell.way, "seconds": cell.seconds, "wrong": cell.wrong})
    assert len(lines) == 3, "no ratio is known before all ways are timed"
    live.case_ends()
    return lines


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([0, 10], 95) == 9.5
    assert percentile([7], 95) == 7


def test_bus_bandwidth_counts_what_every_rank_must_move() -> None:
    cell, *_, copy = bench().cells
    assert cell.bus_bandwidth == pytest.approx(2 * 3 / 4 * MB / 2e-4)
    assert copy.bus_bandwidth == pytest.approx(MB / 1e-4)


def test_the_best_peer_is_the_fastest_that_is_neither_ours_nor_the_limit() -> None:
    value = bench()
    assert [c.way for c in map(value.best_peer, value.cells) if c] == ["MPI"] * 4


def test_the_table_gives_ratios_to_the_best_peer_and_to_the_limit() -> None:
    lines = table(bench())
    ours = next(line for line in lines if "dl_comm" in line)
    assert ours.count("2.00 x") == 2
    assert "200 us" in ours


def test_a_wrong_number_is_shouted() -> None:
    assert any("17 WRONG" in line for line in table(bench(wrong=17)))
    assert [c.way for c in bench(wrong=17).wrong()] == ["gloo"]


def test_the_summary_has_one_line_per_case() -> None:
    lines = summary(bench()).splitlines()
    assert len(lines) == 3
    assert "400 us MPI" in lines[2]


def test_json_gives_the_same_value_back() -> None:
    assert from_json(json.loads(json.dumps(to_json(bench()))), "x.json") == bench()


def test_a_file_that_is_no_bench_is_named(tmp_path: Path) -> None:
    (tmp_path / "y.json").write_text("no JSON")
    with pytest.raises(DlrunError, match=r"y\.json holds no results"):
        read(tmp_path / "y.json")
    with pytest.raises(DlrunError, match=r"x\.json holds no results"):
        from_json({"format": "other"}, "x.json")


def test_a_comparison_tells_slower_from_same() -> None:
    lines = comparison(bench(), bench(factor=2.0)).splitlines()
    ours = next(line for line in lines if "dl_comm" in line)
    theirs = next(line for line in lines if "gloo" in line)
    assert ours.endswith("slower")
    assert theirs.endswith("same")


def test_a_comparison_across_types_is_refused() -> None:
    with pytest.raises(DlrunError, match="measured float32, this one bfloat16"):
        comparison(bench(), bench(dtype="bfloat16"))


def test_runs_without_a_common_case_are_refused() -> None:
    with pytest.raises(DlrunError, match="no case in common"):
        comparison(bench(), Bench("float32", {}, {}, ()))


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (4.2e-6, "4.20 us"), (3e-7, "0.30 us")]
)
def test_times_have_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert seconds_as_text(seconds) == text


def test_numbers_never_show_more_than_three_digits_after_rounding() -> None:
    assert [significant(x) for x in (9.994, 9.996, 99.94, 99.96)] == ["9.99", "10.0", "99.9", "100"]


def test_columns_line_up() -> None:
    lines = aligned(("a", "value"), [("x", "1"), ("longer", "100")]).splitlines()
    assert lines[0] == "a       value"
    assert lines[2] == "x           1"


def test_the_plot_is_written_as_svg_and_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from dlrun.bench.plot import draw

    svg, png = draw(bench(), tmp_path / "bench.json")
    assert svg.read_text().lstrip().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
