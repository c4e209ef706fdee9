"""Use SPACE from Python, synchronously or not.  Imports nothing of the server.

from space.sdk import Sandbox

with Sandbox.create("base") as sandbox:
    print(sandbox.exec(["python3", "-c", "print(6 * 7)"]).stdout)
"""

from space.sdk._async.client import AsyncClient
from space.sdk._async.command import AsyncCommand, AsyncEvents
from space.sdk._async.files import AsyncFiles
from space.sdk._async.sandbox import AsyncSandbox
from space.sdk._async.snapshots import AsyncSnapshots
from space.sdk._sync.client import Client
from space.sdk._sync.command import Command, Events
from space.sdk._sync.files import Files
from space.sdk._sync.sandbox import Sandbox
from space.sdk._sync.snapshots import Snapshots
from space.sdk.errors import (
    CapacityUnavailableError,
    ConflictError,
    DeadlineExceededError,
    FailedPreconditionError,
    ForbiddenError,
    IdempotencyConflictError,
    InsufficientStorageError,
    InternalError,
    InvalidRequestError,
    NotConfiguredError,
    NotFoundError,
    PayloadTooLargeError,
    ProtocolError,
    RateLimitedError,
    SandboxLostError,
    ServiceUnavailableError,
    SpaceError,
    UnauthorizedError,
    UnreachableError,
    UnsupportedError,
)
from space.sdk.events import (
    Event,
    Output,
    ProcessExited,
    ProcessStarted,
    ResyncRequired,
    RolledBack,
    SandboxLost,
    UnknownEvent,
)
from space.sdk.model import (
    ExecResult,
    FileEvent,
    FileInfo,
    Operation,
    Page,
    ProcessInfo,
    SandboxInfo,
    SnapshotInfo,
    TimelineEvent,
)
from space.sdk.retry import RetryPolicy

__all__ = [
    "AsyncClient",
    "AsyncCommand",
    "AsyncEvents",
    "AsyncFiles",
    "AsyncSandbox",
    "AsyncSnapshots",
    "CapacityUnavailableError",
    "Client",
    "Command",
    "ConflictError",
    "DeadlineExceededError",
    "Event",
    "Events",
    "ExecResult",
    "FailedPreconditionError",
    "FileEvent",
    "FileInfo",
    "Files",
    "ForbiddenError",
    "IdempotencyConflictError",
    "InsufficientStorageError",
    "InternalError",
    "InvalidRequestError",
    "NotConfiguredError",
    "NotFoundError",
    "Operation",
    "Output",
    "Page",
    "PayloadTooLargeError",
    "ProcessExited",
    "ProcessInfo",
    "ProcessStarted",
    "ProtocolError",
    "RateLimitedError",
    "ResyncRequired",
    "RetryPolicy",
    "RolledBack",
    "Sandbox",
    "SandboxInfo",
    "SandboxLost",
    "SandboxLostError",
    "ServiceUnavailableError",
    "SnapshotInfo",
    "Snapshots",
    "SpaceError",
    "TimelineEvent",
    "UnauthorizedError",
    "UnknownEvent",
    "UnreachableError",
    "UnsupportedError",
]
