"""Templates on this host, named by their content.

    ROOT/lock                        held by whoever builds
    ROOT/build/ID/                   a build under way; of no worth once its builder has died
    ROOT/sha256/HEX/rootfs/          the tree, shared read-only by all its sandboxes
    ROOT/sha256/HEX/template.json    what it is; written before the directory gets its name
    ROOT/names/NAME/TAG              the digest that a name means now

A template appears by one rename, whole and synced, and never changes.  A name is a pointer that may move.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from space.core.errors import InvalidRequest, NotFound, SpaceError
from space.core.template import Template
from space.host.failpoint import failpoint

DEFAULT_TAG = "latest"
_REFERENCE = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]{0,62})(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LOCK_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """`template.json`: a template but for its name's present meaning and its place on disk."""

    name: str
    tag: str
    digest: str
    recipe: str  #: digest of what it was built from; the same recipe need not be built again
    user: str
    env: Mapping[str, str]
    created_at: datetime
    size_bytes: int
    packages: Mapping[str, str] = field(default_factory=dict)  #: Debian package → version

    def to_json(self) -> str:
        """Write it for `template.json`."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**fields, "created_at": self.created_at.isoformat()}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Description":
        """Read what `to_json` wrote; raises `ValueError` or `TypeError` for anything else."""
        fields = json.loads(text)
        return cls(**{**fields, "created_at": datetime.fromisoformat(fields["created_at"])})


class TemplateStore:
    """Implements `core.ports.Templates` on a directory; any number of processes may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptions: dict[str, Description] = {}  # never changes for a digest

    @property
    def root(self) -> Path:
        return self._root

    async def resolve(self, reference: str) -> Template:
        """Return the template that `name`, `name:tag` or `sha256:…` means.

        Raises:
            InvalidRequest: it has none of these forms.
            NotFound: there is no such template; the message names those that there are.
        """
        if _DIGEST.fullmatch(reference):
            description = self._describe(reference)
            if description is not None:
                return self._template(description, name=description.name, tag=description.tag)
            raise self._missing(reference)
        match = _REFERENCE.fullmatch(reference)
        if match is None or reference.startswith("sha256:"):
            raise InvalidRequest(
                "the template must be NAME, NAME:TAG or sha256: and 64 hex digits, in lower case", field="template"
            )
        name, tag = match["name"], match["tag"] or DEFAULT_TAG
        description = self.find(name, tag)
        if description is None:
            raise self._missing(reference)
        return self._template(description, name=name, tag=tag)

    async def list(self) -> Sequence[Template]:
        """Return what each name means now, sorted by name and tag."""
        found = []
        for path in sorted((self._root / "names").glob("*/*")):
            description = None if path.name.startswith(".") else self.find(path.parent.name, path.name)
            if description is not None:
                found.append(self._template(description, name=path.parent.name, tag=path.name))
        return found

    def find(self, name: str, tag: str = DEFAULT_TAG) -> Description | None:
        """Return what `name:tag` means now, with how it was built; None if it means nothing."""
        try:
            digest = (self._root / "names" / name / tag).read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self._describe(digest) if _DIGEST.fullmatch(digest) else None

    @contextlib.asynccontextmanager
    async def building(self, *, on_wait: Callable[[], None] = lambda: None) -> AsyncIterator[Path]:
        """Hold the builder's lock and yield an empty directory to build in; `on_wait` if another builder has it.

        What dead builders left is removed first; the directory is removed at the end unless `publish` took it.
        """
        self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (self._root / "lock").open("a") as lock:
            while not _try_lock(lock.fileno()):
                on_wait()
                await asyncio.sleep(_LOCK_POLL_SECONDS)
            builds = self._root / "build"
            await asyncio.to_thread(shutil.rmtree, builds, ignore_errors=True)
            place = builds / uuid4().hex
            place.mkdir(parents=True)
            try:
                yield place
            finally:
                shutil.rmtree(builds, ignore_errors=True)

    def publish(self, place: Path, description: Description) -> Template:
        """Give a finished build its name.  `place` holds `rootfs/`, synced; call it inside `building`."""
        hexadecimal = description.digest.removeprefix("sha256:")
        target = self._root / "sha256" / hexadecimal
        if self._describe(description.digest) is None:
            _write(place / "template.json", description.to_json())
            target.parent.mkdir(exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)  # unreadable, so not ours to keep
            failpoint("template.before_publish")
            place.rename(target)
            _sync(target.parent)
        failpoint("template.before_name")
        pointer = self._root / "names" / description.name / description.tag
        pointer.parent.mkdir(parents=True, exist_ok=True)
        temporary = pointer.with_name(f".{pointer.name}.{os.getpid()}")
        _write(temporary, f"{description.digest}\n")
        temporary.replace(pointer)
        _sync(pointer.parent)
        return self._template(description, name=description.name, tag=description.tag)

    def _describe(self, digest: str) -> Description | None:
        known = self._descriptions.get(digest)
        if known is None:
            path = self._root / "sha256" / digest.removeprefix("sha256:") / "template.json"
            try:
                known = Description.from_json(path.read_text())
            except FileNotFoundError:
                return None
            except (ValueError, TypeError, KeyError) as error:
                raise SpaceError(f"{path} is damaged: {error}") from error
            self._descriptions[digest] = known
        return known

    def _template(self, description: Description, *, name: str, tag: str) -> Template:
        return Template(
            name=name,
            tag=tag,
            digest=description.digest,
            rootfs=self._root / "sha256" / description.digest.removeprefix("sha256:") / "rootfs",
            user=description.user,
            env=description.env,
            created_at=description.created_at,
            size_bytes=description.size_bytes,
        )

    def _missing(self, reference: str) -> NotFound:
        names = sorted(path.name for path in (self._root / "names").glob("*"))
        known = f"there are: {', '.join(names)}" if names else "none is built yet; run ./quickstart"
        return NotFound(f"there is no template {reference}; {known}", template=reference)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
