from pathlib import Path

import pytest

from space.core.errors import FailedPrecondition
from space.templates.apt import Source, backports, codename_of, for_guests, host_sources, render

DEB822 = """\
Types: deb deb-src
# a comment inside
URIs: http://mirror.test/debian/
Suites: bookworm
 bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.test/security
Suites: bookworm-security
Components: main
"""


@pytest.fixture
def etc_apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_deb822_sources_are_read_with_continuation_lines_and_comments(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d/debian.sources").write_text(DEB822)
    assert host_sources("bookworm", etc_apt=etc_apt) == (
        Source(
            uri="http://mirror.test/debian",
            suites=("bookworm", "bookworm-updates"),
            components=("main",),
            signed_by="/usr/share/keyrings/debian-archive-keyring.gpg",
        ),
        Source(uri="http://mirror.test/security", suites=("bookworm-security",), components=("main",)),
    )


def test_one_line_entries_are_read_with_options_and_comments(etc_apt: Path) -> None:
    (etc_apt / "sources.list").write_text(
        "# deb http://old.test/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
        "http://mirror.test/debian bookworm main contrib # why\n"
        "deb-src http://mirror.test/debian bookworm main\n"
    )
    (source,) = host_sources("bookworm", etc_apt=etc_apt)
    assert (source.uri, source.suites) == ("http://mirror.test/debian", ("bookworm",))
    assert source.signed_by == "/usr/share/keyrings/debian-archive-keyring.gpg"


@pytest.mark.parametrize(
    "line",
    [
        "deb [signed-by=/etc/apt/keyrings/vendor.gpg] http://vendor.test/linux bookworm main",
        "deb http://vendor.test/linux bookworm stable",
        "deb http://vendor.test/linux nodistro main",
        "deb cdrom:[Debian 12]/ bookworm main",
    ],
)
def test_a_vendors_repository_is_left_out(etc_apt: Path, line: str) -> None:
    (etc_apt / "sources.list").write_text(f"deb http://mirror.test/debian bookworm main\n{line}\n")
    assert [source.uri for source in host_sources("bookworm", etc_apt=etc_apt)] == ["http://mirror.test/debian"]


def test_a_disabled_entry_is_left_out(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d/debian.sources").write_text("Enabled: no\n" + DEB822)
    with pytest.raises(FailedPrecondition, match="no Debian package source for bookworm"):
        host_sources("bookworm", etc_apt=etc_apt)


def test_a_file_of_another_kind_is_not_read(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d/debian.sources.disabled").write_text(DEB822)
    with pytest.raises(FailedPrecondition, match="add one to"):
        host_sources("bookworm", etc_apt=etc_apt)


def test_a_mirror_list_of_a_cloud_image_is_resolved_to_its_first_mirror(etc_apt: Path) -> None:
    mirrors = etc_apt / "mirrors"
    mirrors.write_text("# nearest first\nhttps://near.test/debian/\tpriority:1\nhttps://far.test/debian\n")
    (etc_apt / "sources.list").write_text(f"deb mirror+file:{mirrors} bookworm main\n")
    assert [source.uri for source in host_sources("bookworm", etc_apt=etc_apt)] == ["https://near.test/debian"]


def test_backports_come_from_where_the_release_comes_from(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d/debian.sources").write_text(DEB822)
    assert backports("bookworm", etc_apt=etc_apt).render().splitlines() == [
        "Types: deb",
        "URIs: http://mirror.test/debian",
        "Suites: bookworm-backports",
        "Components: main",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    ]


def test_a_guest_sees_no_password_and_no_place_that_only_the_host_has() -> None:
    sources = (
        Source(
            uri="https://me:secret@mirror.test/debian", suites=("bookworm",), components=("main",), signed_by="/root/k"
        ),
        Source(uri="file:/srv/debian", suites=("bookworm",), components=("main",)),
    )
    text = render(for_guests(sources))
    assert "https://mirror.test/debian" in text
    for hidden in ("secret", "me:", "/srv", "/root"):
        assert hidden not in text


@pytest.mark.parametrize(
    ("os_release", "codename"),
    [("ID=debian\nVERSION_CODENAME=bookworm\n", "bookworm"), ('VERSION_CODENAME="trixie"\n', "trixie"), ("ID=x\n", "")],
)
def test_the_codename_is_read_from_os_release(os_release: str, codename: str) -> None:
    assert codename_of(os_release) == codename
