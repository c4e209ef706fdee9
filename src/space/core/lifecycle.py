"""The lifecycle of a sandbox, as one table.

A sandbox row stores resting states only.  "creating", "suspending", "waking" … are never stored: each is
the name of the unfinished operation that holds the sandbox.  So no sandbox can be stuck half-way without an
operation that will be resumed, cancelled or failed, and crash recovery is "resume unfinished operations".
"""

from dataclasses import dataclass
from enum import StrEnum

from space.core.errors import FailedPrecondition, InvalidTransition, OperationInProgress
from space.core.ids import OperationId


class State(StrEnum):
    """Where a sandbox rests."""

    PENDING = "pending"  #: accepted; nothing on any node yet
    RUNNING = "running"  #: the machine runs and its guest agent answers
    PAUSED = "paused"  #: vCPUs stopped, memory still on its node
    SUSPENDED = "suspended"  #: memory and disk in the object store; holds no node
    FAILED = "failed"  #: lost; can be recovered from a durable snapshot, or deleted
    DELETED = "deleted"  #: terminal


class Kind(StrEnum):
    """What an operation does to its sandbox."""

    CREATE = "create"
    PAUSE = "pause"
    SUSPEND = "suspend"
    WAKE = "wake"
    FORK = "fork"
    SNAPSHOT = "snapshot"
    RECOVER = "recover"
    DELETE = "delete"


class Observation(StrEnum):
    """What a node can tell of a machine without having been asked."""

    EXITED = "exited"
    NODE_LOST = "node_lost"


class Admission(StrEnum):
    """How a request for a change is taken."""

    START = "start"  #: a new operation begins
    JOIN = "join"  #: the same goal is under way: answer with that operation
    SATISFIED = "satisfied"  #: already there: succeed without an operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an operation may start and where it leads."""

    start: frozenset[State]  #: resting states it may start from
    during: str | None  #: the state that users see while it is unfinished; None shows the resting state
    end: State | None  #: resting state on success; None leaves it where it was
    on_error: State | None  #: resting state on failure; None leaves it where it was
    satisfied: frozenset[State] = frozenset()  #: already there
    preempts: bool = False  #: may cancel the operation that holds the sandbox
    joins: bool = True  #: a second request for the same goal joins the first
    starts_machine: frozenset[State] = frozenset()  #: admitted from one of these it raises the generation


_S = State
RULES: dict[Kind, Rule] = {
    Kind.CREATE: Rule(
        start=frozenset({_S.PENDING}),
        during="creating",
        end=_S.RUNNING,
        on_error=_S.FAILED,
        joins=False,
        starts_machine=frozenset({_S.PENDING}),
    ),
    Kind.PAUSE: Rule(
        start=frozenset({_S.RUNNING}), during="pausing", end=_S.PAUSED, on_error=None, satisfied=frozenset({_S.PAUSED})
    ),
    Kind.SUSPEND: Rule(
        start=frozenset({_S.RUNNING, _S.PAUSED}),
        during="suspending",
        end=_S.SUSPENDED,
        on_error=None,
        satisfied=frozenset({_S.SUSPENDED}),
    ),
    Kind.WAKE: Rule(
        start=frozenset({_S.PAUSED, _S.SUSPENDED}),
        during="waking",
        end=_S.RUNNING,
        on_error=None,
        satisfied=frozenset({_S.RUNNING}),
        starts_machine=frozenset({_S.SUSPENDED}),
    ),
    Kind.FORK: Rule(
        start=frozenset({_S.RUNNING, _S.PAUSED, _S.SUSPENDED}), during=None, end=None, on_error=None, joins=False
    ),
    Kind.SNAPSHOT: Rule(start=frozenset({_S.RUNNING, _S.PAUSED, _S.SUSPENDED}), during=None, end=None, on_error=None),
    Kind.RECOVER: Rule(
        start=frozenset({_S.FAILED}),
        during="recovering",
        end=_S.RUNNING,
        on_error=None,
        satisfied=frozenset({_S.RUNNING}),
        starts_machine=frozenset({_S.FAILED}),
    ),
    Kind.DELETE: Rule(
        start=frozenset(State) - {_S.DELETED},
        during="deleting",
        end=_S.DELETED,
        on_error=None,
        satisfied=frozenset({_S.DELETED}),
        preempts=True,
    ),
}


def admit(kind: Kind, state: State, *, held_by: tuple[OperationId, Kind] | None) -> Admission:
    """Decide how a request for `kind` is taken while the sandbox rests in `state` and `held_by` works on it.

    Raises:
        OperationInProgress: another change holds the sandbox and `kind` may not preempt it.
        InvalidTransition: the lifecycle has no such arrow.
    """
    rule = RULES[kind]
    if held_by is not None:
        operation_id, holder = held_by
        if holder is kind and rule.joins:
            return Admission.JOIN
        if not rule.preempts:
            raise OperationInProgress(
                f"cannot {kind}: {holder} is under way; wait for the operation and try again", operation_id=operation_id
            )
    if state in rule.satisfied:
        return Admission.SATISFIED
    if state not in rule.start:
        allowed = ", ".join(sorted(rule.start))
        raise InvalidTransition(
            f"cannot {kind}: the sandbox is {state}; it must be one of: {allowed}", current_state=str(state)
        )
    return Admission.START


def after(observation: Observation, state: State) -> State:
    """Where a sandbox rests after something happened to its machine unasked."""
    return State.FAILED if state in (State.RUNNING, State.PAUSED) else state


def shown(state: State, held_by: Kind | None) -> str:
    """The state that users see."""
    during = RULES[held_by].during if held_by is not None else None
    if during is not None:
        return during
    return "creating" if state is State.PENDING else str(state)


def require_running(state: State, *, held_by: tuple[OperationId, Kind] | None) -> None:
    """Raise unless the machine can be used; fork and snapshot only hold it for a moment, which commands sit out.

    Raises:
        OperationInProgress: a change is under way; afterwards it may run.
        FailedPrecondition: it is deleted, or about to be.
        InvalidTransition: it rests in another state.
    """
    seen = shown(state, held_by[1] if held_by is not None else None)
    if seen == State.RUNNING:
        return
    if state is State.DELETED or (held_by is not None and held_by[1] is Kind.DELETE):
        raise FailedPrecondition(f"the sandbox is {seen}", current_state=seen)
    if held_by is not None:
        raise OperationInProgress(
            f"the sandbox is {seen}; wait for the operation and try again",
            operation_id=held_by[0],
            current_state=seen,
        )
    raise InvalidTransition(f"the sandbox is {seen}; this needs a running one", current_state=seen)
