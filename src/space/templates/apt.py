"""The Debian package sources of this host, so that whatever the host can install from, a template can.

Both of apt's forms are read: deb822 (`*.sources`) and one line an entry (`sources.list`, `*.list`).  Only Debian's
own suites count; a vendor's repository on the host is none of a template's business.  No mirror's name is in SPACE.

`python3 -m space.templates.apt backports` prints the entry from which `./quickstart` installs runsc; it runs on a
bare Debian `python3`, before there is a virtual environment, hence the standard library only.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from space.core.errors import FailedPrecondition

ETC_APT = Path("/etc/apt")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_USER_INFO = re.compile(r"(?<=://)[^/@]*@")
_YES = ("yes", "true", "with", "on", "enable", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One entry of binary packages."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None = None

    def render(self) -> str:
        """Write it in deb822 form."""
        lines = [
            "Types: deb",
            f"URIs: {self.uri}",
            f"Suites: {' '.join(self.suites)}",
            f"Components: {' '.join(self.components)}",
            f"Signed-By: {self.signed_by or _KEYRING}",
        ]
        return "\n".join(lines) + "\n"


def host_sources(codename: str, *, etc_apt: Path = ETC_APT) -> tuple[Source, ...]:
    """Return the host's sources of this Debian release, its updates and its security fixes.

    Raises:
        FailedPrecondition: there are none; the message says what to write where.
    """
    wanted = (codename, f"{codename}-updates", f"{codename}-security", f"{codename}/updates")
    found: list[Source] = []
    for source in _read_all(etc_apt):
        suites = tuple(suite for suite in source.suites if suite.strip("/") in wanted)
        if suites and _is_debians(source):
            found.append(replace(source, suites=suites, components=("main",)))
    unique = tuple(dict.fromkeys(found))
    if not any(codename in source.suites for source in unique):
        raise FailedPrecondition(
            f"no Debian package source for {codename} in {etc_apt}; add one to {etc_apt}/sources.list.d/debian.sources"
        )
    return unique


def backports(codename: str, *, etc_apt: Path = ETC_APT) -> Source:
    """Return the entry for backports: where the release itself comes from, another suite."""
    release = next(source for source in host_sources(codename, etc_apt=etc_apt) if codename in source.suites)
    return replace(release, suites=(f"{codename}-backports",))


def for_guests(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Return what a sandbox may see of them: no user names, passwords or places that only the host has."""
    return tuple(
        replace(source, uri=_USER_INFO.sub("", source.uri), signed_by=None)
        for source in sources
        if source.uri.startswith(("http://", "https://"))
    )


def render(sources: Iterable[Source]) -> str:
    """Write a whole `*.sources` file."""
    return "\n".join(source.render() for source in sources)


def codename_of(os_release: str) -> str:
    """Return VERSION_CODENAME from the text of /etc/os-release, or `""`."""
    match = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', os_release, re.MULTILINE)
    return match[1] if match else ""


def _is_debians(source: Source) -> bool:
    is_signed_by_debian = source.signed_by is None or "debian-archive" in source.signed_by
    return "main" in source.components and is_signed_by_debian and not source.uri.startswith("cdrom:")


def _read_all(etc_apt: Path) -> Iterator[Source]:
    parts = sorted((etc_apt / "sources.list.d").glob("*"))
    for path in [etc_apt / "sources.list", *parts]:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".sources":
            yield from _read_deb822(text)
        elif path.suffix == ".list":
            yield from _read_lines(text)


def _read_deb822(text: str) -> Iterator[Source]:
    for block in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
                continue
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
        yield from _sources_of(fields)


def _sources_of(fields: Mapping[str, str]) -> Iterator[Source]:
    is_enabled = fields.get("enabled", "yes").lower() in _YES
    if not is_enabled or "deb" not in fields.get("types", "").split():
        return
    for listed in fields.get("uris", "").split():
        for uri in _resolve(listed):
            yield Source(
                uri=uri,
                suites=tuple(fields.get("suites", "").split()),
                components=tuple(fields.get("components", "").split()),
                signed_by=_signed_by(fields.get("signed-by", "")),
            )


def _read_lines(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)((?:\s+[^#\s]+)*)", line)
        if not match:
            continue
        options = dict(option.partition("=")[::2] for option in (match[1] or "").split())
        for uri in _resolve(match[2]):
            yield Source(
                uri=uri,
                suites=(match[3],),
                components=tuple(match[4].split()),
                signed_by=_signed_by(options.get("signed-by", "")),
            )


def _signed_by(value: str) -> str | None:
    """Return the keyring's path; a key written out in the entry itself counts as another key than Debian's."""
    return value.split()[0] if value else None


def _resolve(uri: str) -> Iterator[str]:
    """Yield the URI; of a list of mirrors in a file (`mirror+file:`, as in cloud images) its first entry."""
    if not uri.startswith("mirror+file:"):
        yield uri.rstrip("/")
        return
    path = Path(uri.removeprefix("mirror+file:"))
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    first = next((line.split()[0] for line in lines if line.strip() and not line.startswith("#")), None)
    if first:
        yield first.rstrip("/")


def main() -> None:
    """Print the sources of this host, or the entry for its backports."""
    codename = codename_of(Path("/etc/os-release").read_text())
    try:
        match sys.argv[1:]:
            case ["host"]:
                print(render(host_sources(codename)), end="")
            case ["backports"]:
                print(backports(codename).render(), end="")
            case _:
                raise SystemExit("usage: python3 -m space.templates.apt host|backports")
    except FailedPrecondition as error:
        raise SystemExit(error.message) from None


if __name__ == "__main__":
    main()
