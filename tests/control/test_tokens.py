"""Tokens: no more than their maker, gone when revoked, and nothing of the secret left behind."""

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path

import pytest

from space.control.tokens import TokenRequest, Tokens
from space.core.account import ALL_SCOPES, READ_ONLY, Principal, Role, Scope, TokenKind
from space.core.errors import InvalidRequest, NotFound, PermissionDenied, Unauthenticated
from space.core.sandbox import SandboxSpec
from space.core.store import AuditFilter
from space.testing.clock import FakeClock
from space.testing.commands import CommandPlane, command_plane
from space.testing.control_plane import OTHER_PROJECT

pytestmark = pytest.mark.anyio
READ = frozenset({Scope.SANDBOXES_READ})


async def a_user(parts: CommandPlane, role: Role = Role.MEMBER, email: str = "ada@example.com") -> Principal:
    _, password = await parts.accounts.create_user(parts.call("createUser"), email=email, role=role)
    assert password is not None
    login = await parts.accounts.login(email, password, address="10.0.0.1", request_id="r")
    return await parts.tokens.verify(login.secret)


async def make(parts: CommandPlane, who: Principal | None = None, **request: object) -> tuple[Principal, str]:
    wanted = TokenRequest(**{"name": "t", "scopes": READ, **request})  # type: ignore[arg-type]
    _, secret = await parts.tokens.create(parts.call("createToken", who=who), wanted)
    return await parts.tokens.verify(secret), secret


@pytest.mark.parametrize(("kind", "shape"), [(TokenKind.SERVICE, ("spc_", 56)), (TokenKind.E2B, ("e2b_", 44))])
async def test_a_token_acts_with_its_own_scopes(tmp_path: Path, kind: TokenKind, shape: tuple[str, int]) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        who, secret = await make(parts, kind=kind)
        assert (secret[:4], len(secret)) == shape
        assert who.id == who.token_id
        assert who.scopes == READ
        who.require(Scope.SANDBOXES_READ)
        with pytest.raises(PermissionDenied):
            who.require(Scope.SANDBOXES_WRITE)


async def test_only_the_hash_of_a_secret_is_on_disk(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        who, secret = await make(parts)
        token = await parts.tokens.get(parts.who, who.token_id)
        assert secret.startswith(token.prefix)
        assert len(token.prefix) == 10
    for file in tmp_path.glob("space.db*"):
        data = file.read_bytes()
        assert secret.encode() not in data
        assert secret[10:].encode() not in data


@pytest.mark.parametrize(
    "secret",
    ["", "x", "spc_", "spc_" + "a" * 52, "spc_" + "a" * 52 + "\n", "spc_" + "A" * 52, "e2b_" + "0" * 40, "é" * 56,
     "spc_" + "a" * 10_000_000, "' OR 1=1 --", "\0" * 56],
)  # fmt: skip
async def test_whatever_is_no_token_is_refused_alike(tmp_path: Path, secret: str) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        with pytest.raises(Unauthenticated) as refused:
            await parts.tokens.verify(secret)
        assert refused.value.message == "no valid token; sign in, or ask for a new one"
        assert not refused.value.details


async def test_a_revoked_token_is_refused_at_once_here_and_after_five_seconds_elsewhere(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_working=False, is_observed=False, clock=clock) as parts:
        elsewhere = Tokens(parts.plane.store, clock)
        who, secret = await make(parts)
        await elsewhere.verify(secret)
        assert not await elsewhere.is_revoked(who.token_id)

        await parts.tokens.revoke(parts.call("revokeToken"), who.token_id)

        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(secret)
        assert await parts.tokens.is_revoked(who.token_id)
        clock.advance(5)
        with pytest.raises(Unauthenticated):
            await elsewhere.verify(secret)
        assert await elsewhere.is_revoked(who.token_id)
        await parts.tokens.revoke(parts.call("revokeToken"), who.token_id)  # again
        assert len(await parts.audited(action="revokeToken")) == 1


async def test_a_revocation_during_a_look_up_is_not_forgotten(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        who, secret = await make(parts)
        parts.tokens.forget()
        accounts = parts.plane.store.accounts
        find = accounts.find_secret

        async def slow(token_hash: bytes):  # type: ignore[no-untyped-def]
            found = await find(token_hash)
            await parts.tokens.revoke(parts.call(), who.token_id)
            return found

        accounts.find_secret = slow  # type: ignore[method-assign]
        try:
            with contextlib.suppress(Unauthenticated):  # the call that raced may go either way
                await parts.tokens.verify(secret)
        finally:
            accounts.find_secret = find  # type: ignore[method-assign]
        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(secret)


async def test_a_token_ends_at_its_time_although_it_is_cached(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_working=False, is_observed=False, clock=clock) as parts:
        _, secret = await make(parts, expires_at=clock.now() + timedelta(seconds=2))
        clock.advance(1)
        await parts.tokens.verify(secret)
        clock.advance(1)
        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(secret)


async def test_uses_are_written_now_and_then(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_working=False, is_observed=False, clock=clock) as parts:
        who, secret = await make(parts)
        for _ in range(10):
            await parts.tokens.verify(secret)
        assert (await parts.tokens.get(parts.who, who.token_id)).last_used_at is None
        await parts.tokens.flush()
        used = clock.now()
        assert (await parts.tokens.get(parts.who, who.token_id)).last_used_at == used
        clock.advance(31)
        await parts.tokens.verify(secret)
        await parts.tokens.flush()
        assert (await parts.tokens.get(parts.who, who.token_id)).last_used_at == clock.now()


async def test_token_cannot_be_used_to_make_a_stronger_one(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        member = await a_user(parts)
        for request in (
            {"scopes": frozenset({Scope.ADMIN})},
            {"scopes": frozenset({Scope.AUDIT_READ, Scope.SANDBOXES_READ})},
            {"project_id": OTHER_PROJECT},
        ):
            with pytest.raises(PermissionDenied):
                await make(parts, member, **request)
        weak, _ = await make(parts, member, scopes=member.scopes)
        with pytest.raises(PermissionDenied):  # a service token without admin makes none at all
            await make(parts, weak)
        ending, _ = await make(parts, scopes=ALL_SCOPES, expires_at=parts.plane.clock.now() + timedelta(hours=1))
        with pytest.raises(PermissionDenied):  # nor one that outlives it
            await make(parts, ending)
        narrow, _ = await make(parts, scopes=ALL_SCOPES, templates=frozenset({"base"}))
        with pytest.raises(PermissionDenied):
            await make(parts, narrow, templates=frozenset({"base", "other"}))
        child, _ = await make(parts, narrow)
        assert child.templates == frozenset({"base"})


async def test_token_of_a_login_that_was_revoked_meanwhile_cannot_make_another(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        member = await a_user(parts)
        user = await parts.accounts.get_user(parts.who, member.id)
        await parts.accounts.update_user(parts.call(), user.id, is_disabled=True)
        with pytest.raises(Unauthenticated):
            await make(parts, member)  # the principal was verified before


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "n" * 129}, "name"),
        ({"scopes": frozenset()}, "scopes"),
        ({"kind": TokenKind.LOGIN}, "kind"),
        ({"templates": frozenset()}, "templates"),
        ({"templates": frozenset({""})}, "templates"),
        ({"templates": frozenset(str(number) for number in range(65))}, "templates"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_by_field(
    tmp_path: Path, request_: dict[str, object], field: str
) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        with pytest.raises(InvalidRequest) as refused:
            await make(parts, **request_)
        assert refused.value.details["field"] == field
        with pytest.raises(InvalidRequest):
            await make(parts, expires_at=parts.plane.clock.now())


async def test_a_token_for_a_project_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        with pytest.raises(NotFound):
            await make(parts, project_id="prj" + "8" * 26)
        other, _ = await make(parts, project_id=OTHER_PROJECT)
        assert other.project_id == OTHER_PROJECT


async def test_a_user_sees_and_revokes_the_own_tokens_only(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        ada, bob = await a_user(parts), await a_user(parts, email="bob@example.com")
        hers, _ = await make(parts, ada)
        his, secret = await make(parts, bob)

        assert [token.id for token in (await parts.tokens.list(ada)).items] == [hers.token_id]
        with pytest.raises(NotFound):
            await parts.tokens.revoke(parts.call(who=ada), his.token_id)
        await parts.tokens.verify(secret)
        await parts.tokens.revoke(parts.call(who=his), his.token_id)  # a token may end itself
        everything = [token.id for token in (await parts.tokens.list(parts.who)).items]
        assert {hers.token_id, his.token_id, parts.who.token_id} <= set(everything)
        assert all(token.kind is not TokenKind.LOGIN for token in (await parts.tokens.list(parts.who)).items)


async def test_case_25_a_key_for_one_template_with_one_scope(tmp_path: Path) -> None:
    """A key for template A: create with B is refused, both attempts are in the audit log, revoked within 5 s."""
    async with command_plane(tmp_path) as parts:
        scopes = frozenset({Scope.SANDBOXES_READ, Scope.SANDBOXES_WRITE})
        key, secret = await make(parts, scopes=scopes, templates=frozenset({"base"}))
        other, _ = await make(parts, scopes=scopes, templates=frozenset({"other"}))
        call = parts.call("createSandbox", who=key)

        with pytest.raises(PermissionDenied) as refused:
            await parts.plane.sandboxes.create(parts.call("createSandbox", who=other), SandboxSpec(template="base"))
        # What the server does with every refusal.
        await parts.audit.refused(parts.call("createSandbox", who=other), refused.value, target="base")
        sandbox, _ = await parts.plane.sandboxes.create(call, SandboxSpec(template="base"))

        reader, _ = await make(parts, scopes=READ, templates=frozenset({"base"}))
        with pytest.raises(PermissionDenied) as too_little:
            reader.require(Scope.SANDBOXES_WRITE)
        await parts.audit.refused(parts.call("createSandbox", who=reader), too_little.value)

        entries = await parts.audit.list(parts.who, AuditFilter(action="createSandbox"), limit=10)
        assert [(entry.principal, entry.outcome) for entry in reversed(entries.items)] == [
            (other.id, "forbidden"),
            (key.id, "ok"),
            (reader.id, "forbidden"),
        ]
        assert sandbox.created_by == key.id
        await parts.tokens.revoke(parts.call("revokeToken"), key.token_id)
        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(secret)


async def test_secrets_are_in_no_repr(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        await parts.accounts.create_user(parts.call(), email="a@b.c", role=Role.VIEWER, password="long enough secret")
        login = await parts.accounts.login("a@b.c", "long enough secret", address=None, request_id="r")
        assert login.secret not in repr(login)
        assert (await parts.tokens.verify(login.secret)).scopes == READ_ONLY
        again = await parts.accounts.bootstrap(cli_secret=None)
        assert again.cli_token is not None
        assert again.cli_token not in repr(again)


async def test_many_verifications_at_once_agree(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        _, secret = await make(parts)
        parts.tokens.forget()
        found = await asyncio.gather(*(parts.tokens.verify(secret) for _ in range(50)))
        assert len({who.id for who in found}) == 1
