"""The audit log of changes that were not made.

Made ones are recorded by the control plane in the transaction of the change.  Refused callers are recorded here; those
without a valid token only so many a minute, because anybody could fill the disk with them.
"""

from collections.abc import Sequence

import structlog

from space.core.errors import SpaceError
from space.core.event import AuditEntry
from space.core.ports import Clock
from space.server.request import PRINCIPAL, ApiRequest

log = structlog.get_logger()

ANONYMOUS_A_MINUTE = 60


class Refusals:
    """Records refused changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window = 0.0
        self._recorded = 0
        self._dropped = 0

    async def record(self, request: ApiRequest, error: SpaceError, values: Sequence[str]) -> None:
        """Append to the audit log; a failure to do so is logged, and does not hide the refusal itself."""
        target = values[0][:64] if values else None
        audit = request.services.audit
        try:
            if PRINCIPAL in request.scope:
                await audit.refused(request.call, error, target=target)
            elif self._may_record():
                await audit.record(self._anonymous(request, error, target))
        except SpaceError as failure:
            log.error("audit.not_recorded", action=request.action, error=failure.message)

    def _may_record(self) -> bool:
        now = self._clock.monotonic()
        if now - self._window >= 60:
            if self._dropped:
                log.warning("audit.anonymous_dropped", count=self._dropped)
            self._window, self._recorded, self._dropped = now, 0, 0
        if self._recorded >= ANONYMOUS_A_MINUTE:
            self._dropped += 1
            return False
        self._recorded += 1
        return True

    def _anonymous(self, request: ApiRequest, error: SpaceError, target: str | None) -> AuditEntry:
        return AuditEntry(
            project_id=None,
            principal="anonymous",
            action=request.action,
            target=target,
            outcome=error.code,
            request_id=request.request_id,
            address=request.address,
            details={},
            at=self._clock.now(),
        )
