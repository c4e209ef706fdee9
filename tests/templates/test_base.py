"""The recipe, and the tree that ./test has built from it."""

import asyncio
import hashlib
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from space.core.errors import InsufficientStorage, InvalidRequest
from space.core.template import Template
from space.templates.apt import Source
from space.templates.authorities import HOST_DIRECTORY, Authority, extra_authorities
from space.templates.base import Recipe, build_base, installed_packages
from space.templates.store import TemplateStore
from space.templates.tree import tree_digest

SOURCE = Source(uri="http://mirror.test/debian", suites=("bookworm",), components=("main",))
RECIPE = Recipe(codename="bookworm", sources=(SOURCE,), authorities=())


def test_the_recipes_digest_changes_with_what_the_tree_would_hold() -> None:
    assert RECIPE.digest == replace(RECIPE).digest
    other_mirror = replace(RECIPE, sources=(replace(SOURCE, uri="http://other.test/debian"),))
    with_authority = replace(RECIPE, authorities=(Authority("pem"),))
    assert len({RECIPE.digest, other_mirror.digest, with_authority.digest}) == 3


def test_a_new_password_in_the_hosts_sources_does_not_build_anew() -> None:
    with_password = replace(RECIPE, sources=(replace(SOURCE, uri="http://me:secret@mirror.test/debian"),))
    assert with_password.digest == RECIPE.digest


def test_installed_packages_are_read_from_dpkgs_status() -> None:
    status = (
        "Package: bash\nStatus: install ok installed\nVersion: 5.2\nDescription: shell\n Version: not this\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    assert installed_packages(status) == {"bash": "5.2"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
def test_too_small_a_disk_is_refused_before_anything_is_written(small_disk: Path) -> None:
    with pytest.raises(
        InsufficientStorage, match=r"needs 1024 MiB below .* are free; make room, or set SPACE_DATA_DIR"
    ):
        asyncio.run(build_base(TemplateStore(small_disk / "templates")))
    assert list(small_disk.iterdir()) == []


@pytest.mark.root
def test_a_wrong_authority_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="SPACE_EXTRA_CA"):
        asyncio.run(build_base(TemplateStore(tmp_path / "templates"), extra_ca=tmp_path / "missing"))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def base(templates_dir: Path) -> Template:
    return asyncio.run(TemplateStore(templates_dir).resolve("base"))


@pytest.mark.root
class TestBuilt:
    def test_building_again_finds_it_built(self, base: Template, templates_dir: Path) -> None:
        reports: list[object] = []
        assert asyncio.run(build_base(TemplateStore(templates_dir), report=reports.append)) == base
        assert reports == []

    def test_nothing_has_changed_the_tree_since_it_was_named(self, base: Template) -> None:
        assert tree_digest(base.rootfs) == (base.digest, base.size_bytes)

    def test_it_is_small(self, base: Template) -> None:
        assert base.size_bytes < 200 << 20

    @pytest.mark.parametrize("program", ["python3", "git", "curl", "ps", "bash", "apt-get"])
    def test_it_has_the_program(self, base: Template, program: str) -> None:
        assert (base.rootfs / "usr/bin" / program).is_file()

    def test_its_user_is_an_ordinary_one_with_a_home(self, base: Template) -> None:
        assert base.user == "user"
        line = next(line for line in _read(base, "etc/passwd").splitlines() if line.startswith("user:"))
        assert line == "user:x:1000:1000::/home/user:/bin/bash"
        home = (base.rootfs / "home/user").stat()
        assert (home.st_uid, home.st_gid) == (1000, 1000)

    def test_no_account_has_a_password(self, base: Template) -> None:
        assert {line.split(":")[1] for line in _read(base, "etc/shadow").splitlines()} <= {"*", "!", "!*"}

    def test_programs_that_raise_privileges_are_debians_usual_ones(self, base: Template) -> None:
        found = {
            path.name
            for path in (base.rootfs / "usr").rglob("*")
            if not path.is_symlink() and path.is_file() and path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
        }
        usual = {
            "chage",
            "chfn",
            "chsh",
            "expiry",
            "gpasswd",
            "mount",
            "newgrp",
            "passwd",
            "su",
            "umount",
            "unix_chkpwd",
        }
        assert found <= usual

    def test_it_has_no_devices_and_nothing_in_the_directories_that_a_machine_mounts(self, base: Template) -> None:
        for name in ("dev", "proc", "sys", "run", "tmp"):
            assert list((base.rootfs / name).iterdir()) == []

    def test_it_does_not_know_the_host(self, base: Template) -> None:
        assert _read(base, "etc/hostname") == "sandbox\n"
        assert _read(base, "etc/resolv.conf") == ""
        assert _read(base, "etc/machine-id") == ""
        assert not list((base.rootfs / "var/log").rglob("*.log"))
        name = socket.gethostname()
        if len(name) > 4:  # a shorter one is in many words
            for path in (base.rootfs / "etc").rglob("*"):
                if path.is_file() and not path.is_symlink():
                    assert name.encode() not in path.read_bytes(), path

    def test_it_trusts_whom_the_host_was_told_to_trust(self, base: Template) -> None:
        bundle = _read(base, "etc/ssl/certs/ca-certificates.crt")
        trusted = {hashlib.sha256(der).digest() for der in _certificates(bundle)}
        assert len(trusted) > 100
        for authority in extra_authorities(None, host_directory=HOST_DIRECTORY):
            assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.pem)).digest() in trusted

    def test_its_programs_run(self, base: Template) -> None:
        ran = subprocess.run(
            [
                "chroot",
                "--userspec=1000:1000",
                str(base.rootfs),
                "/usr/bin/python3",
                "-c",
                "import ssl, sqlite3; print(6*7)",
            ],
            capture_output=True,
            check=True,
            env=dict(base.env),
        )
        assert ran.stdout == b"42\n"


def _read(template: Template, name: str) -> str:
    return (template.rootfs / name).read_text()


def _certificates(bundle: str) -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle)
    return context.get_ca_certs(binary_form=True)
