"""What a port imports: dl_comm under one of its names, or what dlrun port translates."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrun.errors import DlrunError
from dlrun.verify.refusals import refuse


@pytest.mark.parametrize(
    ("ported", "hint"),
    [
        ("import ml_comm_torch", None),
        ("import ml_comm as mc", None),
        ("import dl_comm", None),
        ("import horovod.torch as hvd", "dlrun port --from horovod {} translates"),
        ("from mpi4py import MPI", "dlrun port {} writes a port that does"),
    ],
)
def test_a_port_imports_dl_comm_by_any_of_its_names(ported: str, hint: str | None, tmp_path: Path) -> None:
    serial, port = tmp_path / "train.py", tmp_path / "dist.py"
    serial.write_text("import torch\n")
    port.write_text(f"import torch\n{ported}\n")
    if hint is None:
        refuse(serial, port, 2, 6)
        return
    with pytest.raises(DlrunError) as found:
        refuse(serial, port, 2, 6)
    assert hint.format(port if "horovod" in hint else serial) in (found.value.hint or "")
