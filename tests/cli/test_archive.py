import io
import os
from pathlib import Path

import pytest
from backports import tarfile

from space.cli.sandbox.archive import packed, unpack


def test_a_directory_survives_packing_and_unpacking(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "big").write_bytes(os.urandom(700_001))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    unpack(iter(packed(source)), tmp_path / "target")
    assert (tmp_path / "target/deep/er/big").read_bytes() == (source / "deep/er/big").read_bytes()
    assert (tmp_path / "target/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "target/link").readlink() == Path("run.sh")


def test_what_cannot_be_read_is_an_error_and_not_a_short_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    source = packed(tmp_path)
    (tmp_path / "loop").mkdir()
    original = tarfile.TarFile.addfile

    def vanishing(self: tarfile.TarFile, tarinfo: tarfile.TarInfo, fileobj: "io.BufferedReader | None" = None) -> None:
        if tarinfo.name == "a":
            raise PermissionError(13, "Permission denied", "a")
        original(self, tarinfo, fileobj)

    monkeypatch.setattr(tarfile.TarFile, "addfile", vanishing)
    with pytest.raises(PermissionError):
        list(source)


def test_leaving_early_ends_the_packing_thread(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(5_000_000))
    source = packed(tmp_path)
    next(iter(source))
    source.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "linkname"), [("../evil", ""), ("/etc/evil", ""), ("link", "../../etc")])
def test_guest_cannot_write_outside_the_target_of_a_download(tmp_path: Path, name: str, linkname: str) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        info = tarfile.TarInfo(name)
        if linkname:
            info.type, info.linkname = tarfile.SYMTYPE, linkname
        archive.addfile(info)
    target = tmp_path / "a" / "b"
    if name.startswith("/"):
        unpack(iter([raw.getvalue()]), target)  # the filter makes it relative
        assert (target / "etc/evil").exists()
        return
    with pytest.raises(tarfile.FilterError):
        unpack(iter([raw.getvalue()]), target)
    assert not (tmp_path / "a" / "evil").exists()
