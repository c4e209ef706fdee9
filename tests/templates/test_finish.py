from pathlib import Path

import pytest

from space.templates.apt import Source
from space.templates.finish import finish_tree

SOURCES = (Source(uri="http://mirror.test/debian", suites=("bookworm",), components=("main",)),)


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for name in ("etc/apt/apt.conf.d", "etc/apt/sources.list.d", "etc/dpkg/dpkg.cfg.d", "dev", "run", "tmp", "var/tmp"):
        (root / name).mkdir(parents=True)
    (root / "var/log/apt").mkdir(parents=True)
    (root / "var/log/dpkg.log").write_text("yesterday")
    (root / "var/log/apt/term.log").write_text("yesterday")
    (root / "etc/apt/apt.conf.d/99mmdebstrap").write_text('Acquire::http::Proxy "http://me:secret@proxy.test";')
    (root / "etc/apt/sources.list.d/host.sources").write_text("URIs: https://me:secret@mirror.test/debian")
    (root / "etc/hostname").write_text("the-host\n")
    (root / "dev/null").write_text("")
    return root


def test_what_tells_of_the_host_is_gone(rootfs: Path) -> None:
    finish_tree(rootfs, sources=SOURCES)
    text = "\n".join(path.read_text() for path in rootfs.rglob("*") if path.is_file() and not path.is_symlink())
    assert "secret" not in text
    assert "the-host" not in text


def test_logs_go_and_their_directories_stay(rootfs: Path) -> None:
    finish_tree(rootfs, sources=SOURCES)
    assert [path.name for path in (rootfs / "var/log").rglob("*")] == ["apt"]


def test_every_sandbox_can_name_itself_and_find_packages(rootfs: Path) -> None:
    finish_tree(rootfs, sources=SOURCES)
    assert "localhost" in (rootfs / "etc/hosts").read_text()
    assert "http://mirror.test/debian" in (rootfs / "etc/apt/sources.list.d/debian.sources").read_text()
    assert (rootfs / "etc/resolv.conf").read_text() == ""
    assert (rootfs / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_links_that_lead_out_of_the_tree_are_not_followed(rootfs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    (rootfs / "etc/hostname").unlink()
    (rootfs / "etc/hostname").symlink_to(outside / "precious")
    (rootfs / "run").rmdir()
    (rootfs / "run").symlink_to(outside)
    (rootfs / "tmp/link").symlink_to(outside)
    (rootfs / "var/log/link").symlink_to(outside)
    finish_tree(rootfs, sources=SOURCES)
    assert (outside / "precious").read_text() == "precious"
    assert not (rootfs / "etc/hostname").is_symlink()
