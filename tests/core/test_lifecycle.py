"""The lifecycle table: every combination, and what must be true of the whole."""

import itertools

import pytest

from space.core.errors import InvalidTransition, OperationInProgress
from space.core.ids import OperationId
from space.core.lifecycle import RULES, Admission, Kind, Observation, State, admit, after, shown

HOLDER = OperationId("ops" + "0" * 26)
HOLDERS: tuple[Kind | None, ...] = (None, Kind.CREATE, Kind.SUSPEND, Kind.DELETE)

# start = S, join = J, satisfied = =, refused while another works = H, refused in this state = .
# One line a kind; columns are states (pending running paused suspended failed deleted), each with the holders
# (nobody, create, suspend, delete).  Written by hand from the contract, not from the code.
EXPECTED = {
    Kind.CREATE: ("SHHH", ".HHH", ".HHH", ".HHH", ".HHH", ".HHH"),
    Kind.PAUSE: (".HHH", "SHHH", "=HHH", ".HHH", ".HHH", ".HHH"),
    Kind.SUSPEND: (".HJH", "SHJH", "SHJH", "=HJH", ".HJH", ".HJH"),
    Kind.WAKE: (".HHH", "=HHH", "SHHH", "SHHH", ".HHH", ".HHH"),
    Kind.FORK: (".HHH", "SHHH", "SHHH", "SHHH", ".HHH", ".HHH"),
    Kind.SNAPSHOT: (".HHH", "SHHH", "SHHH", "SHHH", ".HHH", ".HHH"),
    Kind.RECOVER: (".HHH", "=HHH", ".HHH", ".HHH", "SHHH", ".HHH"),
    Kind.DELETE: ("SSSJ", "SSSJ", "SSSJ", "SSSJ", "SSSJ", "===J"),
}


def outcome(kind: Kind, state: State, holder: Kind | None) -> str:
    try:
        admission = admit(kind, state, held_by=(HOLDER, holder) if holder else None)
    except OperationInProgress:
        return "H"
    except InvalidTransition:
        return "."
    return {Admission.START: "S", Admission.JOIN: "J", Admission.SATISFIED: "="}[admission]


@pytest.mark.parametrize("kind", Kind)
def test_each_request_is_taken_as_the_contract_says(kind: Kind) -> None:
    taken = tuple("".join(outcome(kind, state, holder) for holder in HOLDERS) for state in State)
    assert taken == EXPECTED[kind]


@pytest.mark.parametrize(("kind", "state", "holder"), list(itertools.product(Kind, State, (None, *Kind))))
def test_every_combination_of_kind_state_and_holder_has_a_defined_answer(
    kind: Kind, state: State, holder: Kind | None
) -> None:
    taken = outcome(kind, state, holder)
    rule = RULES[kind]
    if holder is None:
        assert taken in "S=."
        assert (taken == "S") == (state in rule.start)
    elif holder is kind and rule.joins:
        assert taken == "J"
    elif kind is Kind.DELETE:
        assert taken in "S="
    else:
        assert taken == "H"


@pytest.mark.parametrize("state", State)
def test_every_state_can_reach_deleted(state: State) -> None:
    reached, edge = {state}, {state}
    while edge:
        edge = {rule.end for rule in RULES.values() for here in edge if here in rule.start and rule.end} - reached
        reached |= edge
    assert State.DELETED in reached


def test_nothing_leaves_deleted() -> None:
    assert not [kind for kind, rule in RULES.items() if State.DELETED in rule.start]


def test_only_delete_preempts() -> None:
    assert [kind for kind, rule in RULES.items() if rule.preempts] == [Kind.DELETE]


def test_a_failed_operation_leaves_a_sandbox_where_it_was_unless_it_was_being_created() -> None:
    assert {kind: rule.on_error for kind, rule in RULES.items() if rule.on_error} == {Kind.CREATE: State.FAILED}


def test_a_generation_is_raised_only_where_there_is_no_machine_yet() -> None:
    starts = {kind: rule.starts_machine for kind, rule in RULES.items() if rule.starts_machine}
    assert starts == {
        Kind.CREATE: {State.PENDING},
        Kind.WAKE: {State.SUSPENDED},  # a paused machine is the same one
        Kind.RECOVER: {State.FAILED},
    }


@pytest.mark.parametrize("kind", Kind)
def test_what_starts_a_machine_may_start_there_and_ends_running(kind: Kind) -> None:
    rule = RULES[kind]
    assert rule.starts_machine <= rule.start
    assert not rule.starts_machine or rule.end is State.RUNNING
    assert not rule.starts_machine & {State.RUNNING, State.PAUSED}, "two machines of one sandbox"


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (State.RUNNING, State.FAILED),
        (State.PAUSED, State.FAILED),
        (State.PENDING, State.PENDING),
        (State.SUSPENDED, State.SUSPENDED),
        (State.FAILED, State.FAILED),
        (State.DELETED, State.DELETED),
    ],
)
@pytest.mark.parametrize("observation", Observation)
def test_a_machine_that_is_gone_fails_only_what_had_one(observation: Observation, state: State, end: State) -> None:
    assert after(observation, state) is end


def test_users_see_the_operation_that_holds_a_sandbox() -> None:
    assert shown(State.PENDING, None) == "creating"
    assert shown(State.PENDING, Kind.CREATE) == "creating"
    assert shown(State.RUNNING, Kind.DELETE) == "deleting"
    assert shown(State.RUNNING, Kind.FORK) == "running"
    assert shown(State.RUNNING, None) == "running"


def test_a_refusal_says_who_holds_the_sandbox_or_where_it_is() -> None:
    with pytest.raises(OperationInProgress) as held:
        admit(Kind.PAUSE, State.RUNNING, held_by=(HOLDER, Kind.SUSPEND))
    assert held.value.details == {"operation_id": HOLDER}
    assert held.value.retryable
    with pytest.raises(InvalidTransition) as wrong:
        admit(Kind.WAKE, State.FAILED, held_by=None)
    assert wrong.value.details == {"current_state": "failed"}
    assert not wrong.value.retryable
