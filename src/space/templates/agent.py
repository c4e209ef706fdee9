"""The directory `/.space`: the guest agent with an interpreter of its own, so that any root filesystem will do.

    bin/python3                       Debian's python3, which has most extension modules built in
    lib/ld.so, lib/lib*.so.*          its loader and libraries: the guest may have another libc, or none
    lib/python3X.zip                  the modules that the agent uses, compiled; one file, because under gVisor each
                                      look-up in a directory of the host costs more than the import itself
    lib/python3.X/lib-dynload/*.so    extension modules that are not built in
    agent.pyz                         `space_guest`

The directory is named after the digest of all that goes into it, built aside and renamed into place: it is whole or
absent, and machines of an older version keep theirs.
"""

import hashlib
import importlib.util
import io
import marshal
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import space_guest
from space.core.errors import FailedPrecondition
from space.templates.elf import closure, interpreter

PROGRAMS = tuple(Path(f"/usr/bin/python3.{minor}") for minor in (11, 12, 13))
LIBRARIES = tuple(map(Path, ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/lib", "/usr/lib")))
FORMAT = 1  #: raised when this module puts the same files together in another way
EXECUTABLE = ("bin/python3", "lib/ld.so")

#: whole packages, and single modules, that the agent imports at some time; the tests run it with nothing else
PACKAGES = ("collections", "ctypes", "encodings", "importlib", "json", "re")
MODULES = (
    *("__future__", "_collections_abc", "_compression", "_sitebuiltins", "_weakrefset", "abc", "bz2", "codecs"),
    *("contextlib", "copy", "copyreg", "datetime", "enum", "fnmatch", "functools", "genericpath", "hashlib", "heapq"),
    *("hmac", "inspect", "io", "keyword", "linecache", "locale", "lzma", "ntpath", "operator", "os", "pkgutil"),
    *("posixpath", "reprlib", "runpy", "selectors", "shutil", "signal", "site", "socket", "stat", "stringprep"),
    *("struct", "tarfile", "textwrap", "threading", "token", "tokenize", "traceback", "types", "typing", "warnings"),
    *("weakref", "zipimport"),
)
UNUSED = frozenset({"test", "macholib"})
EXTENSIONS = ("_ctypes", "_json", "_typing", "resource", "_queue", "_contextvars")
ENCODINGS = ("__init__", "aliases", "ascii", "cp437", "idna", "latin_1", "utf_8", "utf_8_sig", "unicode_escape")


@dataclass(frozen=True, slots=True)
class _Parts:
    """All that goes in, as files of the host: name below the directory, or inside its archive → source."""

    python: str  #: `python3.11`
    files: Mapping[str, Path]
    stdlib: Mapping[str, Path]
    agent: Mapping[str, Path]


def build_agent_dir(target: Path) -> Path:
    """Build the directory below `target` unless it is there; return it.

    Raises:
        FailedPrecondition: this host has no interpreter of the distribution to take.
    """
    parts = _parts(find_interpreter())
    place = target / _digest(parts)
    if place.is_dir():
        return place
    target.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".agent-", dir=target))
    try:
        _write(unfinished, parts)
        try:
            unfinished.rename(place)
        except OSError:
            if not place.is_dir():  # else somebody built the same at the same time
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place


def find_interpreter() -> Path:
    """Return the distribution's python3; raises `FailedPrecondition` with the remedy if there is none."""
    for program in PROGRAMS:
        if program.is_file() and (Path("/usr/lib") / program.name / "tarfile.py").is_file():
            return program
    raise FailedPrecondition(
        "the guest agent needs the distribution's own Python: apt-get install python3.11-minimal libpython3.11-stdlib"
    )


def _parts(program: Path) -> _Parts:
    folder = Path("/usr/lib") / program.name
    # An extension that has no file is built in.
    extensions = [path for name in EXTENSIONS for path in sorted((folder / "lib-dynload").glob(f"{name}.*.so"))]
    files = {"bin/python3": program}
    files |= {f"lib/{program.name}/lib-dynload/{path.name}": path for path in extensions}
    loader = Path(interpreter(program) or "").name
    for name, path in closure([program, *extensions], LIBRARIES).items():
        files[f"lib/{'ld.so' if name == loader else name}"] = path
    return _Parts(program.name, files, _stdlib(folder), _agent())


def _stdlib(folder: Path) -> dict[str, Path]:
    """Return name in the archive → source."""
    found = {f"{name}.py": folder / f"{name}.py" for name in MODULES}
    for package in PACKAGES:
        for path in sorted((folder / package).rglob("*.py")):
            name = path.relative_to(folder)
            is_needed = path.stem in ENCODINGS if package == "encodings" else not UNUSED.intersection(name.parts)
            if is_needed:
                found[str(name)] = path
    return {name: path for name, path in found.items() if path.is_file()}


def _agent() -> dict[str, Path]:
    root = Path(space_guest.__file__).parent
    found = {f"space_guest/{path.relative_to(root)}": path for path in sorted(root.rglob("*.py"))}
    return found | {"__main__.py": root / "__main__.py"}


def _archive(sources: Mapping[str, Path], python: str) -> bytes:
    """Return an uncompressed zip of compiled modules, the same bytes each time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(sources):
            entry, data = _compiled(name, sources[name], python)
            archive.writestr(zipfile.ZipInfo(entry, (1980, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()


def _compiled(name: str, source: Path, python: str) -> tuple[str, bytes]:
    """Return name and bytes of a module: compiled if this interpreter is of the same version, else its source."""
    if python != f"python3.{sys.version_info.minor}":
        return name, source.read_bytes()
    code = compile(source.read_bytes(), f"<{name}>", "exec", dont_inherit=True, optimize=2)
    return f"{name}c", importlib.util.MAGIC_NUMBER + b"\0" * 12 + marshal.dumps(code)


def _digest(parts: _Parts) -> str:
    digest = hashlib.sha256(f"{FORMAT} {parts.python} {sys.implementation.cache_tag}".encode())
    for group in (parts.files, parts.stdlib, parts.agent):
        for name in sorted(group):
            digest.update(f"\0{name}\0".encode() + hashlib.sha256(group[name].read_bytes()).digest())
    return digest.hexdigest()[:32]


def _write(root: Path, parts: _Parts) -> None:
    for name, source in parts.files.items():
        _write_file(root / name, source.read_bytes(), mode=0o755 if name in EXECUTABLE else 0o644)
    stdlib = _archive(parts.stdlib, parts.python)
    _write_file(root / "lib" / f"{parts.python.replace('.', '')}.zip", stdlib, mode=0o644)
    _write_file(root / "agent.pyz", _archive(parts.agent, parts.python), mode=0o644)
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)


def _write_file(path: Path, data: bytes, *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    path.chmod(mode)
