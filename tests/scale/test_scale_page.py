"""The page of a scaling study in a real browser that has no network."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from dlrun.scale.reading import Point, Reading
from dlrun.scale.report import write
from dlrun.scale.result import STRONG, WEAK, Run, Study

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
WIDE, HIGH = 1000, 1600


def run(mode: str, ranks: int) -> Run:
    points = tuple(Point(float(i), 0.5 + i / 10, 1 / (i + 1)) for i in range(4))
    return Run(mode, ranks, 0, 9.0, Reading((90.0 * ranks, 95.0 * ranks, 99.0 * ranks), points))


def browse(page: Path, *what: str) -> subprocess.CompletedProcess[str]:
    """Open the page in a headless browser to which no name resolves, with a profile of its own."""
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={page.parent / 'profile'}"]
    line = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *offline, *what, page.as_uri()]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=True, cwd=page.parent)


def rows(png: Path) -> set[bytes]:
    """The different rows of pixels of an 8-bit PNG, as they are stored."""
    raw = png.read_bytes()
    assert raw.startswith(b"\x89PNG")
    wide, high, depth, kind = struct.unpack(">IIBB", raw[16:26])
    assert (wide, high, depth) == (WIDE, HIGH, 8)
    data, place = b"", 8
    while place < len(raw):
        (length,) = struct.unpack(">I", raw[place : place + 4])
        if raw[place + 4 : place + 8] == b"IDAT":
            data += raw[place + 8 : place + 8 + length]
        place += 12 + length
    lines, each = zlib.decompress(data), 1 + wide * (4 if kind == 6 else 3)
    return {lines[row * each : (row + 1) * each] for row in range(high)}


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed (chromium)")
def test_a_browser_without_a_network_shows_tables_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study = Study("train_dist.py", 4, "1", tuple(run(mode, ranks) for mode in (WEAK, STRONG) for ranks in (1, 2, 4)))
    write(study, 0.7, tmp_path, "dlrun scale train_dist.py")
    page = tmp_path / "report.html"
    shown = browse(page, "--dump-dom").stdout
    assert shown.count("<table") == 3 and shown.count("<svg") == 5
    assert re.search(r"<h1[^>]*>How train_dist.py scales", shown)
    browse(page, f"--window-size={WIDE},{HIGH}", f"--screenshot={tmp_path / 'page.png'}")
    assert len(rows(tmp_path / "page.png")) > HIGH / 4, "text, rules and figures; an empty page has few"
