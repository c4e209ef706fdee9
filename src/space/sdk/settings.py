"""Which server, with which token: arguments, then the environment, then a file on this machine."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from space.sdk.errors import NotConfiguredError

DEFAULT_DATA_DIR = "/var/lib/space"
DEFAULT_API_URL = "http://127.0.0.1:8470"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach a server; the token is left out of its repr."""

    api_url: str
    token: str
    data_plane_url: str | None = None  #: None: as the server says in each `events_url`

    def __repr__(self) -> str:
        return f"ClientSettings(api_url={self.api_url!r}, data_plane_url={self.data_plane_url!r}, token=…)"


def resolve_settings(
    api_url: str | None = None,
    token: str | None = None,
    data_plane_url: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    needs_token: bool = True,
) -> ClientSettings:
    """Fill in what was not given from `SPACE_API_URL`, `SPACE_API_TOKEN`, `SPACE_DATA_PLANE_URL`, then `cli.json`.

    The token in such a file is used only with the URL in it: it is never sent to a server named elsewhere.
    """
    environment = os.environ if environment is None else environment
    api_url = api_url or environment.get("SPACE_API_URL") or None
    token = token or environment.get("SPACE_API_TOKEN") or None
    data_plane_url = data_plane_url or environment.get("SPACE_DATA_PLANE_URL") or None
    local = _local(environment)
    if local and token is None and (api_url is None or api_url.rstrip("/") == local["api_url"].rstrip("/")):
        api_url, token = local["api_url"], local["token"]
    elif local and api_url is None:
        api_url = local["api_url"]
    if token is None and needs_token:
        raise NotConfiguredError(
            f"no token: set SPACE_API_TOKEN, run `space login`, or start a server here with `space up` "
            f"and be the user who may read {cli_file(environment)}"
        )
    return ClientSettings((api_url or DEFAULT_API_URL).rstrip("/"), token or "", _stripped(data_plane_url))


def cli_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return where the server of this machine leaves its URL and a token for the local CLI."""
    environment = os.environ if environment is None else environment
    return Path(environment.get("SPACE_DATA_DIR") or DEFAULT_DATA_DIR) / "cli.json"


def user_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return where `space login` keeps a user's URL and token."""
    environment = os.environ if environment is None else environment
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".config"
    return Path(home) / "space" / "cli.json"


def _local(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Read the first file that there is: of a data directory named on purpose, of `space login`, of this machine."""
    named = [cli_file(environment)] if environment.get("SPACE_DATA_DIR") else []
    found = (read_cli_file(path) for path in (*named, user_file(environment), cli_file(environment)))
    return next(filter(None, found), None)


def write_cli_file(path: Path, *, api_url: str, token: str) -> None:
    """Write such a file whole or not at all, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"api_url": api_url, "token": token}, file)
    temporary.replace(path)


def read_cli_file(path: Path) -> dict[str, str] | None:
    """Return `{"api_url", "token"}` of the local server; None if there is none that this user may read."""
    try:
        body = json.loads(path.read_bytes())
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None
    except ValueError as error:
        raise NotConfiguredError(f"{path} is not JSON: {error}; restart the server to have it written anew") from error
    if not isinstance(body, dict) or not all(isinstance(body.get(key), str) for key in ("api_url", "token")):
        raise NotConfiguredError(f"{path} lacks api_url or token; restart the server to have it written anew")
    return {"api_url": body["api_url"], "token": body["token"]}


def _stripped(url: str | None) -> str | None:
    return None if url is None else url.rstrip("/")
