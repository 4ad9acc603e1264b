"""A profile is applied where everything agrees, and where one thing differs, that thing is named."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest

from dlrun.launch import LaunchPlan, prepare
from dlrun.launch.profile import FORMAT, Key, Profile, choose, folder, graphics, key_of, processor, read, wires, write

KEY = Key(4, 2, "mpich 5.0.2", "0.1.0", "a CPU", "", "eth0")
PROFILE = Profile("resnet50", "2026-01-28", 0.18, KEY, (("DL_COMM_STAGE_KB", "64"), ("DL_COMM_DEFAULT_NTHREADS", "1")))
TODAY = date(2026, 1, 31)


def test_a_fitting_profile_is_applied_and_says_so_in_one_line() -> None:
    settings, line = choose([PROFILE], KEY, {}, today=TODAY)
    assert settings == dict(PROFILE.settings)
    expected = "tuned profile resnet50 (+18 %, 3 days ago): DL_COMM_STAGE_KB=64, DL_COMM_DEFAULT_NTHREADS=1"
    assert line == expected


@pytest.mark.parametrize("field", Key._fields)
def test_a_field_that_differs_is_named_and_nothing_is_applied(field: str) -> None:
    other: dict[str, object] = {field: 8 if field.startswith("ranks") else "another"}
    settings, line = choose([PROFILE], KEY._replace(**other), {})  # type: ignore[arg-type]
    assert settings == {}
    assert f"its {field} is" in line


def test_what_the_user_has_set_stays_and_is_shown() -> None:
    settings, line = choose([PROFILE], KEY, {"DL_COMM_STAGE_KB": "1024"}, today=TODAY)
    assert settings == {"DL_COMM_DEFAULT_NTHREADS": "1"}
    assert "DL_COMM_STAGE_KB=1024 stays" in line


def test_the_profile_of_the_script_is_preferred_among_those_that_fit() -> None:
    other = PROFILE._replace(name="gpt2", settings=(("DL_COMM_STAGE_KB", "512"),))
    assert choose([PROFILE, other], KEY, {}, name="gpt2")[0] == {"DL_COMM_STAGE_KB": "512"}


def test_without_profiles_nothing_is_said() -> None:
    assert choose([], KEY, {}) == ({}, "")


def test_a_profile_reads_back_as_it_was_written_and_replaces_its_elder(tmp_path: Path) -> None:
    write(PROFILE, tmp_path)
    newer = PROFILE._replace(gain=0.2)
    path = write(newer, tmp_path)
    assert read(tmp_path) == [newer]
    assert FORMAT in path.read_text()


def test_files_that_are_no_profiles_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"format": "dlrun profile 1"}')
    (tmp_path / "c.json").write_text("[]")
    assert read(tmp_path) == []
    assert read(tmp_path / "missing") == []


def test_profiles_lie_in_the_users_configuration() -> None:
    assert folder({"HOME": "/home/me"}) == Path("/home/me/.config/dlrun/profiles")
    assert folder({"HOME": "/home/me", "XDG_CONFIG_HOME": "/x"}) == Path("/x/dlrun/profiles")


def test_the_machine_is_read_from_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert processor(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n")
    assert processor(tmp_path / "cpuinfo") == f"{os.uname().machine} 0x41 0xd4f"
    assert processor(tmp_path / "none") == os.uname().machine
    for bus in ("0000:01", "0000:02"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA A100\nIRQ: 1\n")
    assert graphics(tmp_path) == "2 x NVIDIA A100"
    assert graphics(tmp_path / "none") == ""
    (tmp_path / "net" / "eth1" / "device").mkdir(parents=True)
    assert wires(2, tmp_path) == "eth1"
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert wires(2, tmp_path) == "mlx5_0"
    assert wires(1, tmp_path) == "none"


def test_launch_applies_what_fits_and_only_where_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DL_COMM_STAGE_KB", raising=False)
    script = tmp_path / "train.py"
    script.write_text("")
    plan = LaunchPlan((str(script),), ranks=2, env=(("DL_COMM_DEFAULT_NTHREADS", "3"),), cwd=str(tmp_path))
    write(PROFILE._replace(key=key_of(prepare(plan)[0])), folder({"XDG_CONFIG_HOME": str(tmp_path)}))
    settled = prepare(plan)[0]
    assert dict(settled.env) == {"DL_COMM_DEFAULT_NTHREADS": "3", "DL_COMM_STAGE_KB": "64"}
    assert settled.notes[-1].startswith("tuned profile resnet50")
    assert prepare(plan._replace(tuned=False))[0].env == plan.env
    other = prepare(plan._replace(ranks=3))[0]
    assert other.env == plan.env
    assert "its ranks is 2, this job's is 3" in other.notes[-1]
