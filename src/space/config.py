"""Every setting of the server, with its unit, default and reason.

Settings come from the environment (`SPACE_*`) once, in `app.py`, and are passed down; no other module reads the
environment.  `space config` prints the result.
"""

from enum import StrEnum
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class ConcurrencyMode(StrEnum):
    """What happens to a client with more requests in flight than `api_concurrency`."""

    OBSERVE = "observe"
    ENFORCE = "enforce"
    OFF = "off"


class Settings(BaseSettings):
    """The server's settings; frozen, so that what a process shows is what it runs with."""

    model_config = SettingsConfigDict(env_prefix="SPACE_", frozen=True, extra="ignore")

    data_dir: Path = Path("/var/lib/space")
    """Root of everything that lasts; owned by root, mode 0700.  One server a directory."""

    listen: str = "127.0.0.1:8470"
    """Address of the API.  Loopback by default: put a TLS proxy before it to serve others."""

    data_plane_listen: str = "127.0.0.1:8471"
    """Address of the data plane (command streams)."""

    data_plane_public_url: str | None = None
    """URL under which clients reach the data plane; default: `http://` + `data_plane_listen`."""

    api_concurrency: int = Field(default=32, ge=1)
    """Requests in flight for one client before `api_concurrency_mode` acts."""

    api_concurrency_mode: ConcurrencyMode = ConcurrencyMode.OBSERVE
    """`observe` counts and logs, `enforce` answers 429, `off` does neither."""

    max_body_mib: int = Field(default=4, ge=1)
    """Largest JSON body in MiB; file uploads are streams and have no limit but the disk."""

    session_token_seconds: int = Field(default=300, ge=1)
    """Life in seconds of the token with which one command session's stream is read."""

    login_hours: int = Field(default=12, ge=1)
    """Life of a login session."""

    journal_limit_mib: int = Field(default=4096, ge=1)
    """Size at which a session's journal holds its writer back, or loses its oldest part if nobody reads."""

    journal_keep_hours: float = Field(default=24, gt=0)
    """How long the journal of an ended process stays readable."""

    slots_ahead: int = Field(default=4, ge=0)
    """Network slots kept ready beyond those in use; making one takes tens of milliseconds."""

    max_machines: int = Field(default=250, ge=1, le=4000)
    """Machines on this host at most."""

    memory_reserve_mib: int = Field(default=512, ge=0)
    """Host memory that no sandbox may be placed into."""

    memory_overcommit: float = Field(default=1.0, ge=1, le=20)
    """How much more memory may be promised to sandboxes than the host has; 1: none, so that none is killed for it."""

    runtime: str | None = None
    """Runtime for sandboxes that name none; default: the best that works here."""

    lease_seconds: float = Field(default=15, gt=0)
    """Life of an operation's lease; a worker renews it at a third of this."""

    create_deadline_seconds: float = Field(default=60, gt=0)
    """How long a machine may take to answer before its create fails."""

    default_quota_sandboxes: int | None = None
    """Sandboxes a project may hold unless its own quota says otherwise; None: no limit."""

    log_format: str = "auto"
    """`json`, `pretty`, or `auto`: pretty on a terminal."""

    log_level: str = "info"
    """Least serious event that is logged: `debug`, `info`, `warning` or `error`."""

    extra_ca: Path | None = None
    """PEM file of additional CAs for templates; default: those that the host added."""

    @field_validator("listen", "data_plane_listen")
    @classmethod
    def _has_host_and_port(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError("must be HOST:PORT, e.g. 127.0.0.1:8470")
        return value

    @property
    def data_plane_url(self) -> str:
        return (self.data_plane_public_url or f"http://{self.data_plane_listen}").rstrip("/")
