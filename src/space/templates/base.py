"""The built-in template `base`: Debian with python3, git, curl and an ordinary user.

Built once by mmdebstrap from the host's own package sources.  What would tell sandboxes about this host (its name,
its resolver, passwords in its sources) is taken out, as is what a sandbox has no use for (manuals, caches, logs).
"""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from space.core.errors import FailedPrecondition, InsufficientStorage, RuntimeFailed
from space.core.template import Template
from space.host.follow import ProgramFailed, follow
from space.templates import apt
from space.templates.authorities import Authority, extra_authorities
from space.templates.finish import finish_tree
from space.templates.mmdebstrap import ProgressReader
from space.templates.progress import Progress, Report, silent
from space.templates.store import DEFAULT_TAG, Description, TemplateStore
from space.templates.tree import tree_digest

NAME = "base"
USER = "user"
PACKAGES = ("ca-certificates", "curl", "git", "procps", "python3")
REVISION = 2  #: raised by whoever changes what this module makes of the same packages
DISK_NEEDED_MIB = 1024  #: 230 MiB for the tree and as much while it is built, with room to live

# Without fsync after each file (a crash starts the build afresh anyway) and without what nobody reads in a sandbox;
# copyright files stay.
_DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/lib/x86_64-linux-gnu/perl/*/CORE/*",  # headers, for building Perl modules
)
# What the host's apt needs to reach its sources; everything else in its configuration is its own affair.
_HOST_APT_OPTIONS = (
    "Acquire::http::Proxy",
    "Acquire::https::Proxy",
    "Acquire::https::CAInfo",
    "Acquire::Check-Valid-Until",
    "Acquire::Check-Date",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides what a build makes, but for the versions that Debian serves on the day."""

    codename: str
    sources: tuple[apt.Source, ...]
    authorities: tuple[Authority, ...]

    @property
    def digest(self) -> str:
        content = {
            "revision": REVISION,
            "codename": self.codename,
            "packages": PACKAGES,
            "dpkg": _DPKG_OPTIONS,
            "sources": apt.render(apt.for_guests(self.sources)),
            "authorities": [authority.file_name for authority in self.authorities],
        }
        return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def host_recipe(*, extra_ca: Path | None = None) -> Recipe:
    """Return the recipe of `base` on this host."""
    codename = apt.codename_of(Path("/etc/os-release").read_text())
    return Recipe(codename=codename, sources=apt.host_sources(codename), authorities=extra_authorities(extra_ca))


async def build_base(store: TemplateStore, *, extra_ca: Path | None = None, report: Report = silent) -> Template:
    """Make sure that `base` exists and was built from the present recipe; quick if it was.

    Needs root.  May be called by several processes at once: one builds, the others wait and find it built.  Killed at
    any point, it leaves nothing that the next call does not remove.

    Raises:
        FailedPrecondition: the host has no Debian sources, or no mmdebstrap.
        InsufficientStorage: too little room, found before anything is written.
        RuntimeFailed: mmdebstrap failed; the message ends with its last words.
    """
    recipe = await asyncio.to_thread(host_recipe, extra_ca=extra_ca)
    built = store.find(NAME)
    if built is not None and built.recipe == recipe.digest:
        return await store.resolve(built.digest)
    _require_room(store.root)

    def waits() -> None:
        report(Progress(step="waiting for another build", fraction=0))

    async with store.building(on_wait=waits) as place:
        built = store.find(NAME)
        if built is not None and built.recipe == recipe.digest:
            return await store.resolve(built.digest)
        await _bootstrap(recipe, place, report)
        rootfs = place / "rootfs"
        finish_tree(rootfs, sources=apt.for_guests(recipe.sources))
        report(Progress(step="naming the tree by its content", fraction=0.96))
        digest, size = await asyncio.to_thread(tree_digest, rootfs)
        await follow(["sync", "--file-system", str(place)])
        report(Progress(step="done", fraction=1))
        return store.publish(place, _describe(recipe, rootfs, digest=digest, size=size))


def _describe(recipe: Recipe, rootfs: Path, *, digest: str, size: int) -> Description:
    return Description(
        name=NAME,
        tag=DEFAULT_TAG,
        digest=digest,
        recipe=recipe.digest,
        user=USER,
        env=_environment(recipe),
        created_at=datetime.now(UTC),
        size_bytes=size,
        packages=installed_packages((rootfs / "var/lib/dpkg/status").read_text(errors="replace")),
    )


def _environment(recipe: Recipe) -> Mapping[str, str]:
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    if recipe.authorities:  # programs that bring their own list of authorities are told of Debian's, which has ours
        bundle = "/etc/ssl/certs/ca-certificates.crt"
        env |= {"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "NODE_EXTRA_CA_CERTS": bundle}
    return env


async def _bootstrap(recipe: Recipe, place: Path, report: Report) -> None:
    (place / "host.sources").write_text(apt.render(recipe.sources))
    authorities = place / "authorities"
    authorities.mkdir()
    for authority in recipe.authorities:
        (authorities / authority.file_name).write_text(authority.pem)
    reader = ProgressReader(report)
    try:
        await follow(
            [
                *("mmdebstrap", "--verbose", "--mode=root", "--variant=minbase", "--format=directory"),
                f"--include={','.join(PACKAGES)}",
                *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
                '--aptopt=Acquire::Languages "none"',
                *(f"--aptopt={option}" for option in await _host_apt_options()),
                *_hooks(authorities),
                *(recipe.codename, str(place / "rootfs"), str(place / "host.sources")),
            ],
            on_line=reader.read,
            # A fixed date: without it the shadow file tells the day of the build, and no two digests are alike.
            env={**os.environ, "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": "1764547200", "TMPDIR": str(place)},
            contained=True,
        )
    except FileNotFoundError:
        raise FailedPrecondition("mmdebstrap is not installed; run: apt-get install mmdebstrap") from None
    except ProgramFailed as error:
        raise RuntimeFailed(f"{error}; its last words:\n" + "\n".join(error.last_lines)) from None


def _hooks(authorities: Path) -> list[str]:
    """Return what mmdebstrap does inside the new tree; `$1` is its path."""
    commands = [
        f"copy-in {authorities}/. /usr/local/share/ca-certificates",
        'chroot "$1" update-ca-certificates',
        f'chroot "$1" useradd --create-home --uid 1000 --user-group --shell /bin/bash {USER}',
    ]
    return [f"--customize-hook={command}" for command in commands]


async def _host_apt_options() -> list[str]:
    lines: list[str] = []
    await follow(["apt-config", "dump"], on_line=lines.append)
    return [line for line in lines if line.startswith(tuple(f"{name} " for name in _HOST_APT_OPTIONS))]


def _require_room(root: Path) -> None:
    place = next(path for path in (root, *root.parents) if path.exists())
    free_mib = shutil.disk_usage(place).free >> 20
    if free_mib < DISK_NEEDED_MIB:
        raise InsufficientStorage(
            f"building the base template needs {DISK_NEEDED_MIB} MiB below {root}, and {free_mib} MiB are free; "
            "make room, or set SPACE_DATA_DIR to a larger disk",
            limit=DISK_NEEDED_MIB,
        )


def installed_packages(status: str) -> dict[str, str]:
    """Read package names and versions from the text of dpkg's status file."""
    packages: dict[str, str] = {}
    for block in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(" "))
        if fields.get("Status", "").endswith(" installed"):
            packages[fields["Package"]] = fields["Version"]
    return packages
