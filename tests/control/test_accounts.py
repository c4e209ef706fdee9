"""Accounts: the first start, signing in, and rights that end the moment they are taken away."""

import asyncio
from pathlib import Path

import pytest

from space.control.accounts import ADMIN_EMAIL, Accounts, Login
from space.control.passwords import Passwords
from space.core.account import Principal, Role, Scope, User
from space.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from space.testing.clock import FakeClock
from space.testing.commands import CommandPlane, command, command_plane

pytestmark = pytest.mark.anyio
PASSWORD = "correct horse battery"


async def a_user(parts: CommandPlane, *, email: str = "ada@example.com", role: Role = Role.MEMBER) -> User:
    user, made = await parts.accounts.create_user(parts.call("createUser"), email=email, role=role, password=PASSWORD)
    assert made is None
    return user


async def login(parts: CommandPlane, email: str = "ada@example.com", password: str = PASSWORD) -> Login:
    return await parts.accounts.login(email, password, address="10.0.0.1", request_id="r")


async def test_the_first_start_makes_an_admin_a_project_and_a_cli_token_once(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        assert parts.admin_password is not None
        assert len(parts.admin_password) >= 24
        assert Scope.ADMIN in parts.who.scopes
        admin = await login(parts, ADMIN_EMAIL, parts.admin_password)
        assert (admin.user.role, admin.user.email) == (Role.ADMIN, ADMIN_EMAIL)
    async with command_plane(tmp_path, is_working=False) as again:
        assert again.admin_password is None
        assert again.who.id == parts.who.id
        assert len((await again.accounts.list_users(again.who)).items) == 1


async def test_a_lost_cli_file_is_replaced_and_the_old_token_ends(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        old = (tmp_path / "cli").read_text()
    (tmp_path / "cli").unlink()  # or: the server was killed before it had written it
    async with command_plane(tmp_path, is_working=False) as again:
        assert again.who.id != parts.who.id
        with pytest.raises(Unauthenticated):
            await again.tokens.verify(old)
        # Whoever never saw the admin's password sets a new one with the CLI's token.
        (admin,) = (await again.accounts.list_users(again.who)).items
        _, password = await again.accounts.reset_password(again.call("resetPassword"), admin.id)
        assert password is not None
        await login(again, ADMIN_EMAIL, password)


async def test_a_cli_file_with_something_else_in_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "cli").write_text("garbage")
    async with command_plane(tmp_path, is_working=False) as parts:
        assert (tmp_path / "cli").read_text().startswith("spc_")
        assert Scope.ADMIN in parts.who.scopes


async def test_a_login_acts_as_its_user_until_it_logs_out(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        user = await a_user(parts)
        session = await login(parts, " ADA@example.com ")
        who = await parts.tokens.verify(session.secret)
        assert (who.id, who.scopes, who.project_id) == (user.id, Role.MEMBER.scopes, user.project_id)
        assert (await parts.accounts.current(who))[0] == user

        await parts.accounts.logout(parts.call("deleteSession", who=who))

        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(session.secret)
        with pytest.raises(FailedPrecondition):
            await parts.accounts.logout(parts.call())  # a service token is no login


async def test_logins_end_after_some_hours(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_working=False, is_observed=False, clock=clock) as parts:
        await a_user(parts)
        session = await login(parts)
        clock.advance(12 * 3600 - 1)
        await parts.tokens.verify(session.secret)
        clock.advance(1)
        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(session.secret)


async def test_attacker_cannot_tell_an_unknown_account_from_a_wrong_password(tmp_path: Path) -> None:
    class Counting(Passwords):
        compared = 0

        def _is_right(self, hashed: str, password: str) -> bool:
            self.compared += 1
            assert hashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")  # the same work for everybody
            return super()._is_right(hashed, password)

    async with command_plane(tmp_path, is_working=False) as parts:
        user = await a_user(parts)
        await a_user(parts, email="off@example.com")
        off = next(u for u in (await parts.accounts.list_users(parts.who)).items if u.email == "off@example.com")
        await parts.accounts.update_user(parts.call(), off.id, is_disabled=True)
        passwords = Counting()
        accounts = Accounts(parts.plane.store, parts.tokens, parts.plane.clock, passwords=passwords)
        answers = set()
        for email, password in (
            (user.email, "wrong"),
            ("nobody@example.com", PASSWORD),
            ("off@example.com", PASSWORD),
            (user.email, "\ud800"),
            (user.email, "x" * 1_000_000),
            ("x" * 1_000_000, PASSWORD),
            ("", ""),
        ):
            before = passwords.compared
            with pytest.raises(Unauthenticated) as refused:
                await accounts.login(email, password, address="10.0.0.9", request_id="r")
            assert passwords.compared == before + 1
            answers.add((refused.value.message, tuple(refused.value.details.items())))
        assert len(answers) == 1
        entries = await parts.audited(action="createLoginSession", outcome="refused")
        assert len(entries) == 7
        assert all(entry.principal == "anonymous" and "nobody" not in repr(entry) for entry in entries)


async def test_attacker_cannot_guess_a_password_by_trying_many(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_working=False, is_observed=False, clock=clock) as parts:
        await a_user(parts)

        async def attempt(address: str, email: str = "ada@example.com") -> str:
            try:
                await parts.accounts.login(email, "wrong", address=address, request_id="r")
            except (Unauthenticated, LimitExceeded) as error:
                return error.code
            return "ok"

        # In parallel and from many addresses: ten tries on one account, whoever asks.
        codes = await asyncio.gather(*(attempt(f"10.0.1.{number}") for number in range(14)))
        assert codes.count("unauthorized") == 10
        with pytest.raises(LimitExceeded) as refused:
            await login(parts)
        assert refused.value.retry_after is not None
        assert 0 < refused.value.retry_after <= 300
        clock.advance(300)
        await login(parts)
        # From one address: thirty tries, whichever the accounts.
        codes = [await attempt("2001:db8::1", f"user{number}@example.com") for number in range(30)]
        assert codes == ["unauthorized"] * 30
        assert await attempt("2001:db8::2", "another@example.com") == "rate_limited"  # the same /64


async def test_attacker_cannot_make_a_queue_of_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.control.passwords._MAX_WAITING", 3)
    async with command_plane(tmp_path, is_working=False) as parts:
        outcomes = await asyncio.gather(
            *(
                parts.accounts.login(f"u{number}@x", "wrong", address=f"10.1.0.{number}", request_id="r")
                for number in range(8)
            ),
            return_exceptions=True,
        )
        assert {type(outcome).__name__ for outcome in outcomes} == {"Unauthenticated", "Unavailable"}


async def test_signing_in_often_is_no_attack(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        await a_user(parts)
        for _ in range(12):
            await login(parts)


async def test_a_user_that_is_disabled_loses_everything_at_once(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        user = await a_user(parts)
        session = await login(parts)
        who = await parts.tokens.verify(session.secret)
        sandbox = await parts.plane.running()
        _, stream = await parts.commands.create(parts.call(who=who), sandbox.id, command())
        token = await parts.commands.verify_session_token(stream.secret)
        assert not await parts.commands.session_token_is_revoked(token)

        await parts.accounts.update_user(parts.call("updateUser"), user.id, is_disabled=True)

        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(session.secret)
        assert await parts.commands.session_token_is_revoked(token)  # an open stream is cut
        with pytest.raises(Unauthenticated):
            await parts.commands.verify_session_token(stream.secret)
        with pytest.raises(Unauthenticated):
            await login(parts)
        await parts.accounts.update_user(parts.call("updateUser"), user.id, is_disabled=False)
        with pytest.raises(Unauthenticated):  # what was revoked stays so
            await parts.tokens.verify(session.secret)
        await login(parts)


async def test_a_demoted_admin_keeps_no_admin_session_and_no_admin_token(tmp_path: Path) -> None:
    from space.control.tokens import TokenRequest

    async with command_plane(tmp_path, is_working=False) as parts:
        user = await a_user(parts, role=Role.ADMIN)
        session = await login(parts)
        call = parts.call(who=await parts.tokens.verify(session.secret))
        _, strong = await parts.tokens.create(call, TokenRequest(name="s", scopes=frozenset({Scope.ADMIN})))
        _, weak = await parts.tokens.create(call, TokenRequest(name="w", scopes=frozenset({Scope.SANDBOXES_READ})))

        await parts.accounts.update_user(parts.call("updateUser"), user.id, role=Role.VIEWER)

        for secret in (session.secret, strong):
            with pytest.raises(Unauthenticated):
                await parts.tokens.verify(secret)
        await parts.tokens.verify(weak)
        assert (await parts.tokens.verify((await login(parts)).secret)).scopes == Role.VIEWER.scopes


async def test_a_new_password_ends_the_sessions_of_the_old_one(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        user = await a_user(parts)
        session = await login(parts)
        _, made = await parts.accounts.reset_password(parts.call("resetPassword"), user.id)
        assert made is not None
        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(session.secret)
        with pytest.raises(Unauthenticated):
            await login(parts)
        await login(parts, password=made)


async def test_a_login_that_races_with_a_reset_does_not_get_in(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        user = await a_user(parts)

        class Slow(Passwords):
            async def verify(self, password: str, hashed: str | None) -> bool:
                is_right = await super().verify(password, hashed)
                await parts.accounts.reset_password(parts.call(), user.id)
                return is_right

        accounts = Accounts(parts.plane.store, parts.tokens, parts.plane.clock, passwords=Slow())
        with pytest.raises(Unauthenticated):
            await accounts.login("ada@example.com", PASSWORD, address=None, request_id="r")


async def test_a_login_that_races_with_a_demotion_does_not_get_the_old_rights(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        user = await a_user(parts, role=Role.ADMIN)

        class Slow(Passwords):
            async def verify(self, password: str, hashed: str | None) -> bool:
                is_right = await super().verify(password, hashed)
                await parts.accounts.update_user(parts.call("updateUser"), user.id, role=Role.VIEWER)
                return is_right

        accounts = Accounts(parts.plane.store, parts.tokens, parts.plane.clock, passwords=Slow())
        with pytest.raises(Unauthenticated):
            await accounts.login("ada@example.com", PASSWORD, address=None, request_id="r")
        assert (await parts.tokens.verify((await login(parts)).secret)).scopes == Role.VIEWER.scopes


async def test_the_last_admin_stays(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        (admin,) = (await parts.accounts.list_users(parts.who)).items
        other = await a_user(parts, role=Role.ADMIN)
        await parts.accounts.update_user(parts.call(), other.id, is_disabled=True)
        for change in ({"is_disabled": True}, {"role": Role.MEMBER}):
            with pytest.raises(FailedPrecondition, match="last admin"):
                await parts.accounts.update_user(parts.call(), admin.id, **change)
        await parts.accounts.update_user(parts.call(), other.id, is_disabled=False)
        both = [parts.accounts.update_user(parts.call(), user.id, is_disabled=True) for user in (admin, other)]
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["FailedPrecondition", "User"]


async def test_only_admins_manage_users(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        user = await a_user(parts)
        who: Principal = await parts.tokens.verify((await login(parts)).secret)
        call = parts.call(who=who)
        for attempt in (
            parts.accounts.create_user(call, email="x@example.com", role=Role.ADMIN),
            parts.accounts.list_users(who),
            parts.accounts.get_user(who, user.id),
            parts.accounts.update_user(call, user.id, role=Role.ADMIN),
            parts.accounts.reset_password(call, user.id),
        ):
            with pytest.raises(PermissionDenied):
                await attempt


async def test_users_are_made_once_and_with_sense(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        await a_user(parts)
        with pytest.raises(AlreadyExists):
            await a_user(parts, email="ADA@EXAMPLE.COM")
        for email in ("", "ada", "@example.com", "a@b@c", "a b@example.com", "a\n@example.com", "a" * 250 + "@b.cd"):
            with pytest.raises(InvalidRequest):
                await a_user(parts, email=email)
        for password in ("short", "x" * 257, "\ud800" * 12):
            with pytest.raises(InvalidRequest) as refused:
                await parts.accounts.create_user(
                    parts.call(), email="bob@example.com", role=Role.VIEWER, password=password
                )
            assert refused.value.details["field"] == "password"
        with pytest.raises(NotFound):
            await parts.accounts.update_user(parts.call(), "usr" + "0" * 26, role=Role.VIEWER)
        entries = await parts.audited(action="createUser")
        assert [entry.details for entry in entries] == [{"email": "ada@example.com", "role": "member"}]


async def test_no_password_is_on_disk(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        await a_user(parts)
        await login(parts)
    for file in tmp_path.glob("space.db*"):
        assert PASSWORD.encode() not in file.read_bytes()
