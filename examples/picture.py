"""Draw README.md's picture: what ``dlrun port`` changes in a script, and how the port trains on 1, 2 and 4 ranks.

Trains ``torch_mnist`` anew, serially and by its port, and writes ``picture.svg`` beside this file::

    python examples/picture.py
"""

import difflib
import math
import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
EPOCHS = 20
EPOCH = re.compile(r"epoch \d+ of \d+: test loss ([\d.]+)")
RUNS = (("serial", "#6e7781", 7), ("2 ranks", "#0969da", 2.5), ("4 ranks", "#bf3989", 2.5))
LINE, TOP, LEFT = 17, 46, 640  # px: a line of the diff, the first one, the plot's left edge


def losses(*command):
    """Return the test loss after each epoch of this command."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads of several ranks would wait for each other's cores
    with tempfile.TemporaryDirectory() as folder:
        words = [*command, "--epochs", str(EPOCHS)]
        result = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return [float(loss) for loss in EPOCH.findall(result.stdout)]


def changes():
    """Return the lines that the port changes, each as (sign, text), with "" between places that are apart."""
    serial, ported = ((HERE / "torch_mnist" / f"{name}.py").read_text().splitlines() for name in ("serial", "dist"))
    lines = []
    for line in list(difflib.unified_diff(serial, ported, lineterm="", n=0))[2:]:
        if line.startswith("@@"):
            lines.append((" ", ""))
        elif line[1:].strip():
            lines.append((line[0], line[1:]))
    return lines[1:]


def diff(lines):
    """Yield the SVG of the diff: what goes in red, what comes in green."""
    y = TOP
    for sign, text in lines:
        if not text:
            y += 6
            continue
        colour, back = {"+": ("#116329", "#dafbe1"), "-": ("#82071e", "#ffebe9")}[sign]
        shown = text if len(text) <= 82 else text[:79] + "..."
        yield f'<rect x="16" y="{y - 12}" width="604" height="{LINE}" fill="{back}"/>'
        yield f'<text class="code" xml:space="preserve" x="22" y="{y}" fill="{colour}">{sign} {escape(shown)}</text>'
        y += LINE


def curves(runs, height):
    """Yield the SVG of the loss curves over the epochs, on a logarithmic scale."""
    low, high = (math.log10(f(min(run) if f is min else max(run) for run in runs)) for f in (min, max))
    left, right, top, bottom = LEFT + 52, 1000, TOP, height - 44

    def x(epoch):
        return left + (right - left) * epoch / (EPOCHS - 1)

    def y(loss):
        return bottom - (bottom - top) * (math.log10(loss) - low) / (high - low)

    for tick in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
        if low <= math.log10(tick) <= high:
            yield f'<path d="M{left} {y(tick):.1f}H{right}" stroke="#d0d7de"/>'
            yield f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for epoch in (1, 5, 10, 15, 20):
        yield f'<text x="{x(epoch - 1):.1f}" y="{bottom + 18}" text-anchor="middle">{epoch}</text>'
    yield f'<text x="{(left + right) / 2}" y="{bottom + 36}" text-anchor="middle">epoch</text>'
    for i, ((name, colour, width), run) in enumerate(zip(RUNS, runs, strict=True)):
        points = " ".join(f"{x(epoch):.1f},{y(loss):.1f}" for epoch, loss in enumerate(run))
        faint = ' stroke-opacity="0.45"' if name == "serial" else ""
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{faint}/>'
        row = top + 12 + 20 * i
        yield f'<path d="M{right - 110} {row - 4}h24" stroke="{colour}" stroke-width="{width}"{faint}/>'
        yield f'<text x="{right - 78}" y="{row}">{name}</text>'


def main():
    """Train, draw, write."""
    script, port = (str(HERE / "torch_mnist" / f"{name}.py") for name in ("serial", "dist"))
    launch = [sys.executable, "-m", "dlrun", "launch"]
    runs = [losses(sys.executable, script), *(losses(*launch, "-n", str(n), port) for n in (2, 4))]
    lines = changes()
    height = TOP + sum(LINE if text else 6 for _, text in lines) + 12
    style = "text{font:13px sans-serif}.code{font:11.5px monospace}.head{font-weight:600}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1020 {height}" width="1020" height="{height}">',
        f"<title>What dlrun port changes, and the test loss on 1, 2 and 4 ranks</title><style>{style}</style>",
        f'<rect width="1020" height="{height}" fill="#ffffff"/>',
        '<text class="head" x="16" y="24">dlrun port train.py</text>',
        f'<text class="head" x="{LEFT + 16}" y="24">test loss, digits, the same 20 epochs</text>',
        *diff(lines),
        *curves(runs, height),
        "</svg>",
    ]
    (HERE / "picture.svg").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
