"""Events and audit entries: appended in the transaction of the change that they tell of."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from space.core.ids import OperationId, ProjectId, SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of a sandbox's timeline.  `seq` is given by the store and rises without gaps per sandbox."""

    seq: int = 0
    project_id: ProjectId
    sandbox_id: SandboxId
    operation_id: OperationId | None
    type: str  #: noun.past-participle, e.g. `sandbox.created`, `operation.failed`, `machine.exited`
    data: Mapping[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One call that changed something, or was refused.  `seq` is given by the store."""

    seq: int = 0
    project_id: ProjectId | None
    principal: str  #: `usr…`, `tok…` or `anonymous`
    action: str  #: the operationId of the route, e.g. `createSandbox`
    target: str | None  #: an id
    outcome: str  #: `ok` or an error code
    request_id: str
    address: str | None
    details: Mapping[str, Any]
    at: datetime
