"""Session tokens: one session, a few minutes, and no longer than their holder may call."""

from pathlib import Path

import pytest

from space.control.tokens import TokenRequest
from space.core.account import Scope
from space.core.errors import Unauthenticated
from space.testing.clock import FakeClock
from space.testing.commands import command, command_plane
from space.testing.control_plane import control_plane

pytestmark = pytest.mark.anyio


async def test_a_session_token_lives_five_minutes_and_renewing_does_not_shorten_it(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_observed=False, clock=clock) as parts:
        sandbox = await parts.plane.running()
        process, first = await parts.commands.create(parts.call(), sandbox.id, command())
        clock.advance(200)
        second = await parts.commands.renew_token(parts.call("renewToken"), sandbox.id, process.session_id)

        assert (second.expires_at - first.expires_at).total_seconds() == 200
        for secret in (first, second):
            assert (await parts.commands.verify_session_token(secret.secret)).session_id == process.session_id
        clock.advance(100)
        with pytest.raises(Unauthenticated):
            await parts.commands.verify_session_token(first.secret)
        token = await parts.commands.verify_session_token(second.secret)
        clock.advance(200)
        with pytest.raises(Unauthenticated):
            await parts.commands.verify_session_token(second.secret)
        assert not await parts.commands.session_token_is_revoked(token)  # expiry cuts no open stream
        assert [entry.target for entry in await parts.audited(action="renewToken")] == [process.session_id]


async def test_revoking_the_token_of_its_holder_cuts_the_stream_within_five_seconds(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        made, secret = await parts.tokens.create(
            parts.call(), TokenRequest(name="t", scopes=frozenset({Scope.COMMANDS_RUN}))
        )
        who = await parts.tokens.verify(secret)
        _, stream = await parts.commands.create(parts.call(who=who), sandbox.id, command())
        token = await parts.commands.verify_session_token(stream.secret)
        assert token.principal == made.id

        await parts.tokens.revoke(parts.call(), made.id)

        assert await parts.commands.session_token_is_revoked(token)
        with pytest.raises(Unauthenticated):
            await parts.commands.verify_session_token(stream.secret)


@pytest.mark.parametrize("secret", ["", "sps_", "sps_" + "a" * 52, "spc_" + "a" * 52, "x" * 1_000_000, "\ud800"])
async def test_whatever_is_no_session_token_is_refused(tmp_path: Path, secret: str) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        with pytest.raises(Unauthenticated):
            await parts.commands.verify_session_token(secret)


async def test_api_token_is_no_session_token_and_the_other_way_round(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        _, stream = await parts.commands.create(parts.call(), sandbox.id, command())
        with pytest.raises(Unauthenticated):
            await parts.tokens.verify(stream.secret)
        with pytest.raises(Unauthenticated):
            await parts.commands.verify_session_token((tmp_path / "cli").read_text())
        assert stream.secret not in repr(stream)


async def test_session_tokens_survive_a_restart_and_are_forgotten_after_their_end(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_observed=False, clock=clock) as parts:
        sandbox = await parts.plane.running()
        _, stream = await parts.commands.create(parts.call(), sandbox.id, command())
    async with command_plane(tmp_path, is_observed=False, clock=clock) as parts:
        await parts.commands.verify_session_token(stream.secret)
    clock.advance(301)
    async with control_plane(tmp_path, clock=clock, is_working=False) as plane:
        await plane.store.accounts.purge(clock.now())
        assert plane.store._reader.row("SELECT COUNT(*) FROM session_tokens") == (0,)
