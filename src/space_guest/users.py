"""Users of the guest, from its own /etc/passwd and /etc/group.

Not the `pwd` module: the interpreter brings its own libc, whose name services must not load what the guest configures.
"""

import os

MAX_FILE = 1024 * 1024


class NoSuchUser(Exception):
    """The guest has no such user."""


class User:
    """Whom a process runs as.  Not a dataclass: importing those costs 8 ms."""

    __slots__ = ("gid", "groups", "home", "name", "shell", "uid")

    def __init__(self, name: str, uid: int, gid: int, groups: tuple[int, ...], home: str, shell: str) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.home = home
        self.shell = shell


def _records(path: str) -> list[list[str]]:
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return []
    return [line.split(":") for line in text.splitlines() if line and not line.startswith("#")]


class Users:
    """Looks users up; reads the files again whenever they changed."""

    def __init__(self, etc: str = "/etc") -> None:
        self._passwd, self._group = f"{etc}/passwd", f"{etc}/group"
        self._stamp: object = None
        self._found: dict[str, User] = {}

    def find(self, name: str) -> User:
        """Return the user of this name, `UID` or `UID:GID`; raises `NoSuchUser`."""
        stamp = (_stamp(self._passwd), _stamp(self._group))
        if stamp != self._stamp:
            self._stamp, self._found = stamp, {}
        user = self._found.get(name)
        if user is None:
            user = self._found[name] = self._read(name)
        return user

    def name_of(self, uid: int) -> str:
        """Return the name of `uid`, or the number."""
        return next((record[0] for record in _records(self._passwd) if record[2:3] == [str(uid)]), str(uid))

    def names(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return names by uid and by gid."""
        return _by_number(_records(self._passwd)), _by_number(_records(self._group))

    def _read(self, name: str) -> User:
        for record in _records(self._passwd):
            if len(record) >= 7 and name in (record[0], record[2]) and _is_id(record[2]) and _is_id(record[3]):
                return self._user(record)
        uid, _, gid = name.partition(":")
        if _is_id(uid) and (not gid or _is_id(gid)):
            return User(uid, int(uid), int(gid or uid), (int(gid or uid),), "/", "/bin/sh")
        if name == "root":
            return User("root", 0, 0, (0,), "/root", "/bin/sh")
        raise NoSuchUser(name)

    def _user(self, record: list[str]) -> User:
        name, uid, gid = record[0], int(record[2]), int(record[3])
        groups = [gid]
        for group in _records(self._group):
            if len(group) >= 4 and _is_id(group[2]) and name in group[3].split(","):
                groups.append(int(group[2]))
        return User(name, uid, gid, tuple(dict.fromkeys(groups))[:1024], record[5] or "/", record[6] or "/bin/sh")


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 2**32 - 1


def _by_number(records: list[list[str]]) -> dict[int, str]:
    return {int(record[2]): record[0] for record in reversed(records) if len(record) >= 3 and _is_id(record[2])}


def _stamp(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
