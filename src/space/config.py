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

    object_store_url: str | None = None
    """Where snapshots are kept: `file:///DIRECTORY` or `s3://BUCKET/PREFIX`, whose region, credentials and endpoint are
    the usual `AWS_*`; default: `objects/` in the data directory."""

    template_images: int = Field(default=8, ge=0)
    """Templates whose booted machine is kept on this node's disk, one for each size, so that others start from it in
    half the time; 0: machines are always booted."""

    snapshot_cache_mib: int = Field(default=10240, ge=0)
    """Local disk for snapshots that were made or woken here, so that waking them again downloads nothing."""

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

    pools: str | None = None
    """Warm pools of machines of the default size: `TEMPLATE=MIN` or `TEMPLATE=MIN-MAX`, several divided by commas,
    e.g. `base=2-10`.  Default: none, because a machine that nobody asked for holds memory and outlives `space down`."""

    pool_memory_mib: int | None = Field(default=None, ge=0)
    """Memory that parked machines may be promised in all; default: half of what sandboxes may use."""

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

    @field_validator("pools")
    @classmethod
    def _has_sizes(cls, value: str | None) -> str | None:
        _pool_sizes(value or "")
        return value

    @property
    def pool_sizes(self) -> dict[str, tuple[int, int]]:
        """The pools that are wanted: template → (min, max)."""
        return _pool_sizes(self.pools or "")

    @property
    def object_store(self) -> str:
        return self.object_store_url or (self.data_dir.resolve() / "objects").as_uri()

    @property
    def data_plane_url(self) -> str:
        return (self.data_plane_public_url or f"http://{self.data_plane_listen}").rstrip("/")


def _pool_sizes(text: str) -> dict[str, tuple[int, int]]:
    sizes: dict[str, tuple[int, int]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        template, _, bounds = part.rpartition("=")
        least, _, most = bounds.partition("-")
        most = most or least
        if not template or not (least.isascii() and least.isdigit() and most.isascii() and most.isdigit()):
            raise ValueError(f"{part!r} must be TEMPLATE=MIN or TEMPLATE=MIN-MAX, e.g. base=2-10")
        if not int(least) <= int(most) <= 1000:
            raise ValueError(f"{part!r}: MIN is at most MAX, and MAX at most 1000")
        sizes[template] = int(least), int(most)
    return sizes
