"""Templates: what a sandbox starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A content-addressed root filesystem on this host.  It never changes once it has a digest."""

    name: str
    tag: str
    digest: str  #: `sha256:` and 64 hex digits
    rootfs: Path  #: a directory tree, shared read-only by all its sandboxes
    user: str = "root"  #: whom commands run as unless they say otherwise
    env: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime
    size_bytes: int
