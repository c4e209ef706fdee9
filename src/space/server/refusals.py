"""The audit log of changes that were not made.

Made ones are recorded by the control plane in the transaction of the change.  Refused callers are recorded here, each
only so many times a minute, because they could fill the disk with refusals; the log says how many are missing.
"""

from collections import Counter
from collections.abc import Sequence

import structlog

from space.core.errors import SpaceError
from space.core.event import AuditEntry
from space.core.ports import Clock
from space.server.request import PRINCIPAL, ApiRequest

log = structlog.get_logger()

ANONYMOUS_A_MINUTE = 60  # of all callers without a valid token together
PRINCIPAL_A_MINUTE = 300
_ANONYMOUS = "anonymous"


class Refusals:
    """Records refused changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window = clock.monotonic()
        self._refused: Counter[str] = Counter()

    async def record(self, request: ApiRequest, error: SpaceError, values: Sequence[str]) -> None:
        """Append to the audit log; a failure to do so is logged, and does not hide the refusal itself."""
        target = values[0][:64] if values else None
        audit = request.services.audit
        try:
            if PRINCIPAL in request.scope:
                if self._may_record(request.principal.id, PRINCIPAL_A_MINUTE):
                    await audit.refused(request.call, error, target=target)
            elif self._may_record(_ANONYMOUS, ANONYMOUS_A_MINUTE):
                await audit.record(self._anonymous(request, error, target))
        except SpaceError as failure:
            log.error("audit.not_recorded", action=request.action, error=failure.message)

    def _may_record(self, principal: str, limit: int) -> bool:
        now = self._clock.monotonic()
        if now - self._window >= 60:
            self._window = now
            self._refused.clear()
        self._refused[principal] += 1
        count = self._refused[principal]
        if count > limit and count & (count - 1) == 0:  # at powers of two, so that a flood does not fill the log either
            log.warning("audit.refusals_dropped", principal=principal, count=count - limit)
        return count <= limit

    def _anonymous(self, request: ApiRequest, error: SpaceError, target: str | None) -> AuditEntry:
        return AuditEntry(
            project_id=None,
            principal=_ANONYMOUS,
            action=request.action,
            target=target,
            outcome=error.code,
            request_id=request.request_id,
            address=request.address,
            details={},
            at=self._clock.now(),
        )
