"""The tree of failures: what callers rely on for ever."""

import pytest

from space.core import errors
from space.core.account import Principal, Role, Scope
from space.core.errors import PermissionDenied, SpaceError

PUBLIC_CODES = {
    "invalid_request",
    "unauthorized",
    "forbidden",
    "not_found",
    "conflict",
    "idempotency_conflict",
    "failed_precondition",
    "rate_limited",
    "capacity_unavailable",
    "service_unavailable",
    "internal",
    "unsupported",
    "payload_too_large",
    "insufficient_storage",
    "deadline_exceeded",
}


def tree(root: type[SpaceError]) -> list[type[SpaceError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


def test_codes_are_exactly_those_of_the_contract() -> None:
    assert {error.code for error in tree(SpaceError)} == PUBLIC_CODES


def test_every_error_of_the_module_is_in_the_tree_that_its_docstring_draws() -> None:
    assert errors.__doc__
    for error in tree(SpaceError):
        if error.__module__ == errors.__name__:
            assert error.__name__ in errors.__doc__


@pytest.mark.parametrize("code", ["rate_limited", "capacity_unavailable", "service_unavailable", "deadline_exceeded"])
def test_what_passes_by_itself_is_retryable(code: str) -> None:
    assert all(error.retryable for error in tree(SpaceError) if error.code == code)


def test_an_error_keeps_its_details() -> None:
    error = errors.LimitExceeded("too many", retry_after=3, quota="sandboxes", limit=1)
    assert (error.message, error.retry_after, error.details) == ("too many", 3, {"quota": "sandboxes", "limit": 1})


def _principal(*scopes: Scope) -> Principal:
    return Principal(id="tok", token_id="tok", project_id="prj", scopes=frozenset(scopes))  # type: ignore[arg-type]


def test_a_missing_scope_is_named_and_admin_has_all() -> None:
    with pytest.raises(PermissionDenied) as caught:
        _principal(Scope.SANDBOXES_READ).require(Scope.SANDBOXES_WRITE)
    assert caught.value.details == {"scope": "sandboxes:write"}
    _principal(Scope.SANDBOXES_READ).require(Scope.SANDBOXES_READ)
    _principal(Scope.ADMIN).require(Scope.CREDENTIALS_WRITE)


def test_roles_hold_less_the_lower_they_are() -> None:
    assert Role.VIEWER.scopes < Role.MEMBER.scopes < Role.ADMIN.scopes
    assert Scope.ADMIN not in Role.MEMBER.scopes
