"""Every number that a port shows, saves and decides by, beside the serial script's with the same parameters."""

from __future__ import annotations

import gzip
import sqlite3
import struct
import time
import zipfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import event, optimizer, run, step

from dlrun.port import port
from dlrun.verify.checks.lines import line_by_line
from dlrun.verify.checks.numbers import compared, judged, numbers_of, unread
from dlrun.verify.checks.turned import averaged, explained, of_gradients
from dlrun.verify.runs import _texts
from dlrun.verify.trace import Event, Run
from dlrun.verify.written import holds_same, numbers_in


def trained(batches: int, *lines: str, within: Sequence[str] = (), lr: float = 0.1) -> list[Event]:
    """An epoch of so many batches, lines shown in it after the second batch, and lines shown after it."""
    events = [optimizer(), event("epoch", epoch=0, loader=0, data=0, size=9), event("trains", epoch=0)]
    for number in range(1, batches + 1):
        events += [event("batch", epoch=0, indices=[number], hash=str(number)), step(number, 0.9, lr=lr)]
        events += [event("print", "t.py:5", text=text) for text in within] if number == 2 else []
    return [*events, event("over", epoch=0), *(event("print", "t.py:7", text=text) for text in lines)]


def status(serial: Run, ported: Run, *turned: Run) -> tuple[str, str]:
    found = compared(serial, ported, 2)
    if turned:
        found = explained(found, [numbers_of(each) for each in (serial, *turned)])
    check = judged(found, 2, "to the end of the script")
    return (check.status, check.fault or check.finding) if check else ("", "")


@pytest.mark.parametrize(
    ("serial", "port", "fault"),
    [
        ("rows 37", "rows 19", "shown-otherwise"),
        ("rows 36", "rows 18", "shown-in-part"),
        ("rows 50000", "rows 50001", "shown-otherwise"),
        ("loss 1.209", "loss nan", "shown-otherwise"),
        ("loss nan", "loss 1.209", "shown-otherwise"),
        ("f1 0.514", "f1 0.522", "shown-otherwise"),
        ("loss 0.5", "loss 1.0", "shown-n-fold"),
        ("loss 0.51234", "loss 0.51235", ""),
        ("best 0.6", "best 0.6600000000000001", "shown-otherwise"),
        ("best 0.6", "best 0.7", "shown-otherwise"),
        ("loss 0.01", "loss 0.02", "shown-n-fold"),
        ("loss 0.51", "loss 0.52", ""),
        ("rate 0.1, loss 0.5", "rate 0.2, loss 0.5", ""),  # scaled as was promised
        ("took 3.25 s, loss 0.5", "took 4.75 s, loss 0.5", ""),
        ("elapsed_time: 3.25, time_s 8 loss 0.5", "elapsed_time: 4.75, time_s 9 loss 0.5", ""),
        ("lr: 0.0123, 38 MB, loss 0.5", "lr: 0.0246, 40 MB, loss 0.5", ""),
        ("lr 0.1, loss 0.5", "lr 0.4, loss 0.5", "shown-otherwise"),  # scaled twice where it is shown
        ("lr 0.1, loss 0.5", "lr 0.03, loss 0.5", ""),
        ('"lr": 0.075, "loss": 0.5', '"lr": 0.3, "loss": 0.5', "shown-otherwise"),  # the ranks have 0.2
    ],
)
def test_numbers_between_epochs_are_the_serial_ones_to_rounding(serial: str, port: str, fault: str) -> None:
    found = status(run(trained(4, serial)), run(trained(2, port, lr=0.2)))
    assert found[0] == ("failed" if fault else "passed")
    assert found[1] == fault or not fault


@pytest.mark.parametrize(
    ("parts", "found"),
    [(("0.00", "0.50"), "passed"), (("0.25", "0.75"), "passed"), (("0.00", "0.25"), "failed")],
)
def test_the_part_of_an_epoch_beside_each_batch_is_that_of_any_that_the_ranks_take_together(
    parts: Sequence[str], found: str
) -> None:
    def each(lines: Sequence[str]) -> Run:
        shown = iter(lines)
        events = trained(len(lines))
        return run([y for x in events for y in ([x, event("print", text=next(shown))] if x.kind == "step" else [x])])

    serial = each(
        [f"at {part} loss {loss}" for part, loss in zip(("0.00", "0.25", "0.50", "0.75"), "3546", strict=True)]
    )
    turned = each(
        [f"at {part} loss {loss}" for part, loss in zip(("0.00", "0.25", "0.50", "0.75"), "5364", strict=True)]
    )
    port = each([f"at {part} loss {loss}" for part, loss in zip(parts, (4.0, 5.0), strict=True)])
    assert status(serial, port, turned)[0] == found


@pytest.mark.parametrize(
    ("line", "first", "second", "due", "fault"),
    [
        ("error {}", "0.12345 s", "0.12345 s", "0.12345 s", ""),
        ("error {}", "0.12345 s", "0.12345 s", "0.24690 s", "shown-n-fold"),
        ("top1:{}", "0.53125", "0.53125", "0.26562", "shown-in-part"),
        ("speed {}", "3.21071", "3.21071", "3.30000", "shown-otherwise"),
        ("took {}", "0.12345 s", "0.12431 s", "0.24690 s", ""),
        ("took {}", "0.1 s", "0.1 s", "0.2 s", ""),  # so few digits may be the same by chance
        ("at {}", "12:15:27", "12:15:27", "12:15:31", ""),
        ("took {}", "980.123 ms", "980.123 ms", "1.021 s", ""),  # in another unit
    ],
)
def test_what_two_serial_runs_have_alike_is_no_time_that_passes(line, first, second, due, fault) -> None:
    one, two = (run(trained(4, *[line.format(each)] * 2)) for each in (first, second))
    check = judged(compared(one, run(trained(2, *[line.format(due)] * 2), []), 2, (one, two)), 2, "")
    assert (check.fault if check else "") == fault


def test_lines_are_the_same_whose_bars_or_blanks_are_of_other_lengths() -> None:
    serial, port = (
        run(trained(n, line)) for n, line in ((2, "[#########] 100%    12 of 12"), (1, "[########  ] 100%  6 of 12"))
    )
    assert status(serial, port) == ("failed", "shown-in-part")


def test_the_mean_of_all_ranks_last_batches_is_right_and_one_ranks_is_not() -> None:
    serial = run(trained(4, "loss 0.7000", "loss 0.5000", "loss 0.6000"))
    other = run(trained(4, "loss 0.9000", "loss 0.4000", "loss 0.8000"))  # with the other batch as the last
    for losses, found in (
        (("0.8000", "0.4500", "0.7000"), "passed"),
        (("0.9000", "0.4000", "0.8000"), "failed"),
        (("0.9000", "0.5000", "0.8000"), "open"),  # the greatest
    ):
        assert status(serial, run(trained(2, *(f"loss {loss}" for loss in losses))), other)[0] == found
    mean = [event("return", fn="average", local=x, mean=0.8) for x in (0.9, 0.7)]
    port = run(*([*trained(2, "loss 0.8000"), each] for each in mean))
    left = compared(run(trained(4, "loss 0.7000")), port, 2)
    assert left.other and not averaged(left, port).other


def test_a_row_of_a_file_that_is_written_in_the_end_is_no_other_row_of_it() -> None:
    serial, own = (run(trained(k), texts={"log.csv": f"0,0.341\n1,{last}\n"}) for k, last in ((4, 0.341), (2, 0.17)))
    found = compared(serial, own, 2)
    assert [pair.port.digits for pair in found.other] == ["0.17"]
    assert of_gradients(found, numbers_of(own), [numbers_of(serial)] * 2).other == found.other


def test_a_batch_that_is_read_where_a_run_is_stopped_was_not_trained_on() -> None:
    stopped = [event("batch", epoch=0, indices=[9], hash="9"), event("end", how="stopped")]
    serial, port = (run([*trained(count), *stopped], texts={"log.txt": "loss 0.5\n"}) for count in (4, 2))
    assert (compared(serial, port, 2).same, compared(serial, port, 2).unpaired) == (1, ())


def test_a_number_that_the_port_shows_nowhere_or_elsewhere_is_not_proved() -> None:
    serial = run(trained(4, "loss 0.5", "rows 36"))
    assert status(serial, run(trained(2, "loss 0.5", "rows 36")))[0] == "passed"
    for other in (
        trained(2, "loss 0.5"),
        trained(2, "loss 0.5", "rows 36", "rows 36"),
        trained(1, "loss 0.5", "rows 36"),
    ):
        assert status(serial, run(other))[0] == "open"


def test_lines_of_an_epoch_are_compared_where_they_follow_the_same_batches() -> None:
    after_two = run(trained(4, within=["loss 0.5"]))
    assert status(after_two, run(trained(2, "rows 1", within=["loss 0.9"])))[0] == ""  # after 2 of each rank
    numbered = trained(2)
    numbered.insert(5, event("print", "t.py:5", text="batch 0"))
    assert status(run(trained(4, within=["batch 1"])), run(numbered))[0] == ""  # counted from 0 on
    shown_after_one = trained(2)
    shown_after_one.insert(5, event("print", "t.py:5", text="loss 0.9"))
    assert status(after_two, run(shown_after_one))[1] == "shown-otherwise"


def test_a_port_that_shows_fewer_lines_shows_them_after_the_same_batches() -> None:
    def ends(*lines: str, each: int) -> Run:
        events = [optimizer()]
        for number, line in enumerate(lines):
            events += [step(each * number + k + 1, 0.9) for k in range(each)]
            events += [event("print", "t.py:5", text=line)]
        return run([*events, event("end", how="finished")])

    serial = ends("seen 8", "seen 16", "seen 24", "seen 32", each=2)
    assert status(serial, ends("seen 16", "seen 32", each=2))[0] == "passed"
    assert status(serial, ends("seen 8", "seen 16", each=2))[1] == "shown-in-part"
    assert status(serial, ends("seen 8", "seen 16", "seen 24", "seen 32", each=2))[0] == "open"


@pytest.mark.parametrize(
    ("shown", "expected"), [("0.600", "passed"), ("0.650", "open"), ("1.200", "failed"), ("0.300", "failed")]
)
def test_a_number_of_the_last_batch_is_the_mean_of_the_ranks_last_ones(shown: str, expected: str) -> None:
    serial, turned = (run(trained(4, f"last {last}")) for last in ("0.500", "0.700"))
    assert status(serial, run(trained(2, f"last {shown}")), turned)[0] == expected


def test_a_number_that_rounds_otherwise_in_another_order_does_not_follow_from_the_last_batch() -> None:
    serial, turned = (run(trained(4, f"sum {number}")) for number in ("5.560889720916748", "5.560889482498169"))
    assert status(serial, run(trained(2, "sum 2.94")), turned)[0] == "failed"


def test_what_is_saved_is_compared_by_name_and_a_decision_by_its_text() -> None:
    def ended(loss: float, best: float) -> Run:
        stored = event("stored", values={"['loss']": loss})
        return run(
            [*trained(4 if loss == 0.5 else 2), stored, event("choice", what="acc > best", values={"acc": best})]
        )

    serial = ended(0.5, 0.25)
    one = compared(serial, run([*trained(2), *list(serial.root.events)[-2:]]), 2)
    assert (one.same, one.other) == (2, ())
    assert [pair.key[0] for pair in compared(serial, ended(0.75, 0.5), 2).other] == ["saved", "decided"]


def test_a_decision_by_what_dl_comm_makes_of_a_number_is_compared_with_the_serial_one() -> None:
    def ended(batches: int, what: str, **values: float) -> Run:
        return run([*trained(batches), event("choice", what=what, values=values)])

    serial = ended(4, "loss < best", loss=0.25, best=0.5)
    text = "dl.average(loss) < dl.lr_scale(best)"
    one, other = (ended(2, text, **{"dl.average(loss)": loss, "best": 0.5}) for loss in (0.25, 0.125))
    assert (compared(serial, one, 2).same, compared(serial, one, 2).unpaired) == (2, ())
    assert [pair.port.digits for pair in compared(serial, other, 2).other] == ["0.125"]


def test_arrays_and_scalars_of_tensorboard_in_files_are_compared_with_their_places(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    runs = []
    for name, loss in (("one", 0.5), ("two", 0.25)):
        (tmp_path / name).mkdir()
        numpy.savez(tmp_path / name / "h.npz", loss=numpy.array([1.0, loss]))
        events = f"events.out.tfevents.{name}"
        (tmp_path / name / events).write_bytes(scalar("val/loss", loss))
        runs.append(
            run(trained(4 if name == "one" else 2), written={f: tmp_path / name / f for f in ("h.npz", events)})
        )
    found = compared(*runs, 2)
    assert [pair.key for pair in found.other] == [("h.npz", "loss[1]", ""), ("events.out.tfevents#", "val/loss", "")]
    assert found.same == 2  # the length and the first entry
    assert numbers_in(tmp_path / "one" / "no.npz") == []


def test_numbers_in_tables_of_a_database_are_compared_with_their_places(tmp_path: Path) -> None:
    runs = []
    for name, loss in (("one", 0.5), ("two", 0.25)):
        with closing(sqlite3.connect(tmp_path / name)) as made, made:
            made.execute("create table log (epoch int, name text, loss real)")
            made.execute("insert into log values (1, 'a', ?)", (loss,))
        runs.append(run(trained(4 if name == "one" else 2), written={"l.db": tmp_path / name}))
    found = compared(*runs, 2)
    assert [pair.key for pair in found.other] == [("l.db", "log[0].loss", "")]
    assert found.same == 2  # the length and the epoch


def test_files_whose_numbers_are_not_read_are_told_where_they_differ(tmp_path: Path) -> None:
    pdf = b"%PDF /CreationDate (D:2026{}) \xff {}"
    held = {
        "curve.png": (b"\x89PNG\xff1", b"\x89PNG\xff2"),
        "same.png": (b"\x89PNG\xff1",) * 2,
        "dated.pdf": tuple(pdf.replace(b"{}", day, 1) for day in (b"01", b"02")),
        "model.pt": (b"PK\x03\x04 data.pkl \xff1", b"PK\x03\x04 data.pkl \xff2"),
        "kept.pkl": (b"\x80\x041", b"\x80\x042"),
        "weights.h5": (b"\x89HDF layer_names \xff1", b"\x89HDF layer_names \xff2"),
    }
    runs = []
    for number, folder in enumerate((tmp_path / "serial", tmp_path / "ranks")):
        folder.mkdir()
        for name, contents in held.items():
            (folder / name).write_bytes(contents[number])
        runs.append(run(trained(2), written={name: folder / name for name in held}))
    check = unread(*runs)
    assert check is not None
    assert check.finding.startswith("curve.png holds")


def test_numbers_in_the_names_of_files_and_folders_are_compared_but_for_times(tmp_path: Path) -> None:
    def wrote(*ways: str) -> Run:
        for way in ways:
            (tmp_path / way).parent.mkdir(exist_ok=True)
            (tmp_path / way).touch()
        facts = {"written": {way: tmp_path / way for way in ways}}
        return run(trained(2), **facts)

    serial = wrote("epoch0_loss0.710/a.txt", "best_acc0.9667.pt")
    other, dated = "epoch0_loss1.420/a.txt", f"run{time.strftime('%m%d-%H%M')}.txt"
    assert status(serial, replace(wrote(other, "best_acc0.9667.pt"), traces=run(trained(1)).traces)) == (
        "failed",
        "shown-n-fold",
    )
    assert not [key for key in numbers_of(wrote(dated)) if key[0] == "named"]


def test_what_is_packed_is_compared_without_the_time_of_packing(tmp_path: Path) -> None:
    for name, text, when in (("a", "0.25", 1980), ("b", "0.25", 1990), ("c", "0.5", 1980)):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"\x00" + text.encode(), mtime=when))
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr(zipfile.ZipInfo("loss.txt", (when, 1, 1, 0, 0, 0)), text)
    for kind in ("gz", "zip"):
        a, b, c = (tmp_path / f"{name}.{kind}" for name in "abc")
        assert (holds_same(a, b), holds_same(a, c)) == (True, False)


def test_numbers_of_hdf5_and_of_matlab_are_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install h5py")
    savemat = pytest.importorskip("scipy.io", reason="SciPy is not installed: pip install scipy").savemat
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("fit").create_dataset("loss", data=[0.5, 0.25])
        file.attrs["best"] = 0.25
    savemat(tmp_path / "a.mat", {"loss": [0.5, 0.25]})
    of_hdf5 = {name: number for name, number, _ in numbers_in(tmp_path / "a.h5")}
    assert of_hdf5 | {"@best[0]": 0.25, "fit/loss[1]": 0.25, "length of fit/loss": 2} == of_hdf5
    assert ("loss[1]", 0.25, 1) in numbers_in(tmp_path / "a.mat")


def test_weights_of_keras_are_compared_where_they_are_saved_and_not_in_their_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install h5py")
    files = [tmp_path / name for name in ("a.weights.h5", "b.weights.h5")]
    for number, name in enumerate(files):
        with h5py.File(name, "w") as file:
            file.create_group("layers/dense/vars").create_dataset("0", data=[0.5, number])
    assert numbers_in(files[0]) == []
    assert holds_same(*files)


def test_pictures_whose_pixels_differ_by_rounding_are_the_same(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="Matplotlib is not installed: pip install matplotlib")
    numpy = pytest.importorskip("numpy")
    for name, grey in (("a.png", 0.5), ("b.png", 0.505), ("c.png", 0.7)):
        pixels = numpy.full((4, 4, 3), 0.5)
        pixels[0, 0] = grey
        image.imsave(str(tmp_path / name), pixels)
    a, b, c = (tmp_path / f"{name}.png" for name in "abc")
    assert (holds_same(a, b), holds_same(a, c)) == (True, False)


def test_numbers_in_compressed_text_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "log.json.gz", "wt") as file:
        file.write('{"loss": 0.25}')
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b no")
    texts = _texts({path.name: path for path in tmp_path.iterdir()})
    assert texts == {"log.json.gz": '{"loss": 0.25}'}


def scalar(tag: str, value: float) -> bytes:
    """Return a record as TensorBoard's writers make it."""
    entry = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(entry)]) + entry
    record = b"\x09" + struct.pack("<d", 1.5) + b"\x10\x03" + b"\x2a" + bytes([len(summary)]) + summary
    return struct.pack("<Q", len(record)) + b"\0\0\0\0" + record + b"\0\0\0\0"


@pytest.mark.parametrize(
    ("serial", "port", "wrong"),
    [
        (["loss 0.5012"], ["loss 0.5013"], False),
        (["loss 0.5012"], ["loss 0.4512"], True),
        (["seen 8"], ["seen 16"], False),  # a constant batch size, added up by two ranks with half of it
        (["loss 0.5", "loss 0.4"], ["loss 0.3"], False),  # not line for line
    ],
)
def test_ranks_that_share_each_batch_show_it_line_by_line(serial: list[str], port: list[str], wrong: bool) -> None:
    one, other = run(trained(4, within=serial)), run(trained(4, within=port), trained(4))
    check = line_by_line(one, other, (one, one))
    assert (check.fault if check else "") == ("shown-otherwise" if wrong else "")


SCRIPT = """import csv
import pickle
from collections import deque
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(85, 4)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
history, best = [], 9.0
for epoch in range(30):
    total, right, seen, ids = 0.0, 0, 0, []
    for i, (a, b) in enumerate(loader):
        out = model(a + 0.1 * torch.randn(a.shape))
        loss = torch.nn.functional.cross_entropy(out, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        right += (out.argmax(1) == b).sum().item()
        seen += len(b)
        ids += b.tolist()
        if i % 4 == 3:
            print(f"{epoch} {i}: {loss.item():.4f}")
    mean = total / len(loader)
    history.append([epoch, mean, right / seen])
    if mean < best:
        best = mean
        torch.save({"model": model.state_dict(), "mean": mean}, "best.pt")
    print(f"{epoch}: {mean:.4f} {right}/{seen} last {loss.item():.4f} ones {sum(ids)} of {len(ids)}")
with open("rows.pkl", "wb") as file:
    pickle.dump({"rows": deque(history)}, file)
with open("history.csv", "w") as file:
    csv.writer(file).writerows(history)
np.save("history.npy", np.array(history))
print("best", best)
"""
TOTALS = "    total, right, seen = dl.total(total, right, seen)"
WRONG = {
    "halved": ("mean = total / dl.serial_steps(len(loader))", "mean = total / dl.serial_steps(len(loader)) / 2"),
    "counted twice": ("history.append([epoch, mean,", "history.append([epoch, dl.total(mean),"),
    "local to rank 0": ("    ids = dl.gather(ids, over=loader)", "    pass"),
    "saved apart": ('"mean": mean}', '"mean": total / len(loader)}'),
    "pickled apart": ("deque(history)", "deque([e, m / 2, r] for e, m, r in history)"),
    "written apart": ("np.array(history)", "np.array(history) * [1, 0.5, 1]"),
}


@pytest.mark.parametrize("fault", ["", *WRONG])
@pytest.mark.wide("written apart", "pickled apart")
def test_a_right_port_is_proved_to_its_end_and_one_with_another_number_is_not(prove, fault: str) -> None:
    text = port(SCRIPT).text
    if fault:
        assert WRONG[fault][0] in text, text
        text = text.replace(*WRONG[fault])
    verdict = prove(text, serial=SCRIPT, shows=True, alike=port(SCRIPT).text)
    found = {check.name: check for check in verdict.checks if check.fault}
    assert verdict.word == ("not proved" if fault else "proved"), verdict
    assert fault or not [check.name for check in verdict.checks if check.status == "open"]
    assert set(found) <= {"every number", "numbers shown", "sums over ranks"}


LOOP = """import torch
torch.manual_seed(0)
data = torch.randn(200, 3)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
STEPS, seen = 24, 0
for it in range(1, STEPS + 1):
    index = torch.randint(0, len(data), (8,))
    loss = (model(data[index]) - data[index].sum(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen += len(index)
    if it % 8 == 0:
        print(f"{it} of {STEPS}, {100 * it / STEPS:.0f} %, {seen} samples, loss {loss.item():.4f}")
        torch.save({"step": it, "model": model.state_dict()}, f"step{it}.pt")
"""
BY_HAND = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(96, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
w = torch.zeros(4, 1, requires_grad=True)
for epoch in range(3):
    total = 0.0
    for a, t in loader:
        loss = (a @ w - t).square().mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.05 * w.grad
            w.grad.zero_()
        total += loss.item()
    print(epoch, f"{total / len(loader):.4f}")
"""


NORMS = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(96, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
model = torch.nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    total, norms = 0.0, 0.0
    for a, b in loader:
        loss = torch.nn.functional.cross_entropy(model(a), b)
        opt.zero_grad()
        loss.backward()
        norms += torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0).item()
        opt.step()
        total += loss.item()
    print(f"{epoch}: {total / len(loader):.5f} norm {norms / len(loader):.5f}")
"""


GENERATES = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(160, 6)
train, test = DataLoader(TensorDataset(x[:96]), batch_size=8, shuffle=True), DataLoader(TensorDataset(x[96:]), 16)
code, make = torch.nn.Linear(6, 2), torch.nn.Linear(2, 6)
opt = torch.optim.SGD([*code.parameters(), *make.parameters()], lr=0.02)
def loss_of(a):
    z = code(a)
    return torch.nn.functional.mse_loss(make(z + 0.1 * torch.randn_like(z)), a, reduction="sum") / len(a)
best = 1e9
for epoch in range(3):
    total = 0.0
    for a, in train:
        loss = loss_of(a)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    with torch.no_grad():
        found = max(loss_of(a).item() for a, in test)
        print(epoch, f"{total / len(train):.4f}", f"{found:.4f}", make(torch.randn(1, 2)))
    if found < best:
        best = found
        torch.save(make.state_dict(), "best.pt")
"""
LIMITED = NORMS.replace("import torch\n", "import time, torch\nstart = time.time()\n", 1)
LIMITED += "    if time.time() - start > 3600:\n        break\n"
SERIAL_LOOPS = {"loop": LOOP, "by hand": BY_HAND, "norms of gradients": NORMS, "samples drawn": GENERATES}
SERIAL_LOOPS |= {"a time limit": LIMITED}
OF_LOOPS = {
    "percent": (LOOP, ("{dl.serial_steps(100 * it / STEPS):.0f}", "{100 * it / STEPS:.0f}"), "every number"),
    "samples": (LOOP, ("{dl.total(seen)}", "{seen}"), "every number"),
    "saved too seldom": (LOOP, ("% dl.steps(8)", "% 8"), "later epochs"),
    "of one rank": (GENERATES, ("    total = dl.total(total)  # sums over all ranks' samples\n", ""), "every number"),
    "by hand": (BY_HAND, ("dl.serial_steps(len(loader))", "len(loader)"), "every number"),
}


@pytest.mark.parametrize("serial", SERIAL_LOOPS.values(), ids=SERIAL_LOOPS)
def test_loops_without_a_loader_updates_by_hand_and_norms_of_gradients_are_proved_to_their_end(
    prove, serial: str
) -> None:
    verdict = prove(port(serial).text, serial=serial, shows=True)
    (numbers,) = (check for check in verdict.checks if check.name == "every number")
    assert verdict.word == "proved", verdict
    assert numbers.finding.endswith("to the end of the script")


ACCUMULATED = NORMS.replace("for a, b in loader:", "for i, (a, b) in enumerate(loader):").replace(
    NORMS[NORMS.index("        opt.zero_grad()") : NORMS.index("        total += loss")],
    """        (loss / 2).backward()
        if (i + 1) % 2 == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0).item()
            opt.step()
            opt.zero_grad()
""",
)
ACCUMULATED = ACCUMULATED.replace("norms / len(loader)", "norm")


@pytest.mark.parametrize(("shown", "code"), [("norm", 3), ("dl.total(norm)", 1)])
def test_a_norm_of_accumulated_gradients_stays_open_and_a_total_of_it_is_found(prove, shown: str, code: int) -> None:
    ported = port(ACCUMULATED).text
    assert "{norm:.5f}" in ported
    verdict = prove(ported.replace("{norm:.5f}", f"{{{shown}:.5f}}"), serial=ACCUMULATED, shows=True)
    assert (verdict.exit_code, verdict.faults) == (code, set() if code == 3 else {"total-of-shared"}), verdict


@pytest.mark.parametrize("fault", OF_LOOPS)
@pytest.mark.wide("by hand", "samples")
def test_a_wrong_number_of_such_loops_is_found(prove, fault: str) -> None:
    serial, edit, name = OF_LOOPS[fault]
    right = port(serial).text
    assert edit[0] in right, right
    verdict = prove(right.replace(*edit), serial=serial, shows=True, alike=right)
    assert name in {check.name for check in verdict.checks if check.fault} <= {name, "numbers shown"}, verdict
