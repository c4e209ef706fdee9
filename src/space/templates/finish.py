"""The last touches to a freshly bootstrapped Debian tree, by this process, without running anything inside it."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from space.templates import apt

_EMPTIED = (
    "boot",
    "dev",
    "proc",
    "run",
    "sys",
    "tmp",
    "var/cache/apt",
    "var/cache/ldconfig",
    "var/lib/apt/lists",
    "var/tmp",
)
#: where machines mount what is not the template's; a runtime would make them in the tree, which has its digest by then
_MOUNT_POINTS = (".space",)
_WITHOUT_FILES = ("var/log",)  # the directories stay: apt and dpkg expect them
_REMOVED = (
    "etc/apt/apt.conf.d/99mmdebstrap",  # the host's proxy, perhaps with a password
    "etc/apt/sources.list",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    *("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-"),
    *("var/lib/dpkg/status-old", "var/lib/dpkg/diversions-old", "var/lib/dpkg/statoverride-old"),
    *("var/cache/debconf/config.dat-old", "var/cache/debconf/templates.dat-old"),
)
_WRITTEN = {
    "etc/hostname": "sandbox\n",
    "etc/hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "",  # whoever gives a machine its network writes it
    "etc/machine-id": "",  # made anew for each sandbox that asks for one
}
# apt works in a sandbox as it did while building: no manuals, and no questions.
_DPKG_CFG = "path-exclude=/usr/share/doc/*\npath-include=/usr/share/doc/*/copyright\npath-exclude=/usr/share/man/*\n"


def finish_tree(rootfs: Path, *, sources: Iterable[apt.Source]) -> None:
    """Remove what tells of this host or differs by chance, and write what every sandbox finds."""
    for name in _EMPTIED:
        _empty(rootfs / name)
    for name in _MOUNT_POINTS:
        (rootfs / name).mkdir(exist_ok=True)
        (rootfs / name).chmod(0o755)
    for name in _WITHOUT_FILES:
        for path in [path for path in (rootfs / name).rglob("*") if path.is_symlink() or not path.is_dir()]:
            path.unlink()
    for name in _REMOVED:
        (rootfs / name).unlink(missing_ok=True)
    listed = rootfs / "etc/apt/sources.list.d"
    _empty(listed)
    (listed / "debian.sources").write_text(apt.render(sources))
    (rootfs / "etc/dpkg/dpkg.cfg.d/space").write_text(_DPKG_CFG)
    for name, text in _WRITTEN.items():
        path = rootfs / name
        path.unlink(missing_ok=True)  # a link here would be followed out of the tree
        path.write_text(text)
        path.chmod(0o644)
    for name in ("tmp", "var/tmp"):
        (rootfs / name).chmod(0o1777)
    rootfs.chmod(0o755)


def _empty(directory: Path) -> None:
    if directory.is_symlink() or not directory.is_dir():
        return
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
