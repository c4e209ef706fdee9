"""The flag set, and what is never asked of runsc."""

from pathlib import Path

import pytest

from space.runtimes.gvisor.command import Runsc, check_id


def test_the_flags_are_those_that_were_found_to_work() -> None:
    runsc = Runsc(program="runsc", root=Path("/run/space/x/gvisor"))
    line = runsc.argv("run", "id", log=Path("/l"), filestore=Path("/f"))
    assert line == [
        "runsc",
        "--root=/run/space/x/gvisor",
        "--platform=systrap",
        "--network=sandbox",
        "--net-disconnect-ok",
        "--overlay2=all:dir=/f",
        "--host-uds=none",
        "--cpu-num-from-quota",
        "--log=/l",
        "run",
        "id",
    ]


def test_the_hardened_profile_gives_up_direct_file_access() -> None:
    assert "--directfs=false" in Runsc(program="runsc", root=Path("/r"), hardened=True).argv("run")
    assert "--directfs=false" not in Runsc(program="runsc", root=Path("/r")).argv("run")


def test_ids_have_one_length() -> None:
    check_id("sbx" + "0" * 26 + "00000a")
    for wrong in ("", "d1", "sbx" + "0" * 31, "sbx" + "0" * 33, "sbx" + "0" * 31 + "/", "SBX" + "0" * 32):
        with pytest.raises(ValueError, match="machine id"):
            check_id(wrong)


def test_files_of_a_machine_are_found_by_its_whole_id(tmp_path: Path) -> None:
    mine, other = "sbx" + "0" * 31 + "1", "sbx" + "0" * 31 + "2"
    for machine_id in (mine, other):
        (tmp_path / f"{machine_id}_sandbox:{machine_id}.state").touch()
        (tmp_path / f"runsc-{machine_id}.sock").touch()
    found = Runsc(program="runsc", root=tmp_path).files_of(mine)
    assert len(found) == 2
    assert all(other not in path.name for path in found)
    assert Runsc(program="runsc", root=tmp_path / "missing").files_of(mine) == []
