"""Scripts that read their data, or an answer, from the standard input: all ranks get that of rank 0."""

import subprocess
import sys
from pathlib import Path

import pytest

from dlrun.port import port

TRAINING = """
x = torch.tensor(rows)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(epochs):
    seen = 0
    for (a,) in DataLoader(TensorDataset(x), batch_size=4, shuffle=True):
        loss = ((model(a[:, :3]) - a[:, 3:]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += len(a)
    print("epoch", epoch, "rows", seen)
"""
HEAD = "import sys\nimport torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
READS = {
    "lines": "epochs = int(next(sys.stdin))\nrows = [[float(w) for w in line.split()] for line in sys.stdin]\n",
    "bytes": "epochs, *rows = [list(map(float, l.split())) for l in sys.stdin.buffer.read().splitlines()]\n"
    "epochs = int(epochs[0])\n",
    "questions": """epochs = int(input())
rows = []
while True:
    try:
        rows.append([float(w) for w in input().split()])
    except EOFError:
        break
""",
}
SHARED = 'sys.stdin = io.StringIO(dl.broadcast(sys.stdin.read() if dl.is_rank0() else ""))'


@pytest.mark.parametrize("how", READS)
@pytest.mark.wide("questions")
def test_rows_that_come_in_are_shared_among_the_ranks(how, tmp_path):
    text = port(f"{HEAD}{READS[how]}{TRAINING}").text
    assert (SHARED in text) is (how != "bytes")
    assert "\nimport io\n" in text and text.count("import sys\n") == 1
    (tmp_path / "train.py").write_text(text)
    rows = "2\n" + "".join(f"{i} {i + 1} {i + 2} 1\n" for i in range(16))
    command = [str(Path(sys.executable).with_name("mpiexec")), "-n", "2", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, input=rows, capture_output=True, text=True, timeout=240)
    assert done.stdout == "epoch 0 rows 16\nepoch 1 rows 16\n", done.stderr


def test_a_question_is_asked_by_rank_0():
    ported = port(f"{HEAD}rows = torch.randn(8, 4).tolist()\nepochs = int(input('epochs? '))\n{TRAINING}")
    assert "epochs = int(dl.broadcast(input('epochs? ') if dl.is_rank0() else \"\"))" in ported.text
    assert "StringIO" not in ported.text


@pytest.mark.parametrize(
    "read",
    [
        "source = open(sys.argv[1]) if len(sys.argv) > 1 else sys.stdin\n",
        "if len(sys.argv) < 2:\n    source = sys.stdin\n",
        "source = open(0)\n",
        "source = open('/dev/stdin')\n",
    ],
)
def test_an_input_that_is_read_only_at_times_or_past_python_is_doubted(read):
    rows = "rows = [[float(w) for w in line.split()] for line in source]\nepochs = 1\n"
    ported = port(f"{HEAD}{read}{rows}{TRAINING}")
    assert SHARED not in ported.text
    (doubt,) = [d for d in ported.doubts if d.name == "not-shared"]
    assert doubt.danger == "high" and "rank 0 alone has the standard input" in doubt.why


def test_a_stream_that_is_only_asked_what_it_is_stays():
    text = port(f"{HEAD}rows, epochs = torch.randn(8, 4).tolist(), 1\nshow = sys.stdin.isatty()\n{TRAINING}").text
    assert "show = sys.stdin.isatty()\n" in text and "StringIO" not in text
