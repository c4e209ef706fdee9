"""What the HTTP layer asks of the control plane, handed over once by `app.py`."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from space.config import Settings
from space.control.accounts import Accounts
from space.control.audit import Audit
from space.control.commands import Commands
from space.control.files import Files
from space.control.idempotency import Idempotency
from space.control.operations import Operations
from space.control.pools import Pools
from space.control.projects import Projects
from space.control.run import Runs
from space.control.sandboxes import Sandboxes
from space.control.tokens import Tokens
from space.core.node import NodeFacts
from space.core.ports import Clock, Templates
from space.core.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The control plane's classes, and the few facts of the node that the API shows."""

    sandboxes: Sandboxes
    operations: Operations
    commands: Commands
    files: Files
    runs: Runs
    accounts: Accounts
    tokens: Tokens
    projects: Projects
    pools: Pools
    audit: Audit
    idempotency: Idempotency
    templates: Templates
    settings: Settings
    clock: Clock
    node_facts: Callable[[], Awaitable[NodeFacts]]
    metrics: Callable[[Sandbox], Awaitable[Mapping[str, float]]]  #: of a sandbox's machine
    data_plane_url: Callable[[], str]  #: asked each time: a test's port is known only after it listens
    checks: Mapping[str, Callable[[], Awaitable[Any]]] = field(default_factory=dict)  #: what `/readyz` tries
