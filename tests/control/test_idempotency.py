"""Idempotency keys: done once and answered twice, whoever races and whatever crashes."""

import asyncio
from pathlib import Path

import pytest

from space.control.idempotency import MAX_KEPT_BODY, Fresh, Idempotency, Linked, Replay
from space.control.tokens import TokenRequest
from space.core.account import IdempotencyRef, Role, Scope
from space.core.errors import IdempotencyConflict, InvalidRequest, NotFound
from space.core.sandbox import SandboxSpec
from space.host.failpoint import FailpointError, arm
from space.testing.clock import FakeClock
from space.testing.commands import command, command_plane
from space.testing.node import FakeNode

pytestmark = pytest.mark.anyio


def ref(key: str = "k1", *, body: bytes = b"1", path: str = "POST /v1/sandboxes", who: str = "tok1") -> IdempotencyRef:
    return IdempotencyRef(principal_id=who, key=key, method_path=path, request_hash=body * 32)


async def test_the_first_answer_is_given_again_also_after_a_restart(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        keys = parts.idempotency
        assert isinstance(await keys.begin(ref()), Fresh)
        await keys.complete(ref(), status=201, body=b'{"a":1}', headers={"location": "/x"})
        again = Replay(status=201, body=b'{"a":1}', headers={"location": "/x"})
        assert await keys.begin(ref()) == again
    async with command_plane(tmp_path, is_working=False) as parts:
        assert await parts.idempotency.begin(ref()) == again


async def test_another_body_is_a_conflict_while_it_runs_and_after(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        keys = parts.idempotency
        await keys.begin(ref())
        with pytest.raises(IdempotencyConflict):
            await keys.begin(ref(body=b"2"))
        await keys.complete(ref(), status=200, body=b"{}")
        with pytest.raises(IdempotencyConflict):
            await keys.begin(ref(body=b"2"))
        assert isinstance(await keys.begin(ref()), Replay)  # the conflict left nothing reserved


async def test_a_key_belongs_to_one_caller_and_one_route(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        keys = parts.idempotency
        await keys.begin(ref())
        await keys.complete(ref(), status=200, body=b"secret of tok1")
        assert isinstance(await keys.begin(ref(who="tok2")), Fresh)
        assert isinstance(await keys.begin(ref(path="POST /v1/run")), Fresh)


async def test_the_same_request_in_flight_waits_and_gets_the_answer(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        keys = parts.idempotency
        assert isinstance(await keys.begin(ref()), Fresh)
        waiting = [asyncio.create_task(keys.begin(ref())) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        await keys.complete(ref(), status=200, body=b"{}")
        assert {type(answer) for answer in await asyncio.gather(*waiting)} == {Replay}


async def test_when_the_first_fails_in_passing_exactly_one_of_the_waiting_runs(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        keys = parts.idempotency
        await keys.begin(ref())
        waiting = [asyncio.create_task(keys.begin(ref())) for _ in range(5)]
        await asyncio.sleep(0)
        await keys.abandon(ref())
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [type(task.result()) for task in done] == [Fresh]
        await asyncio.sleep(0.01)
        assert sum(task.done() for task in waiting) == 1
        await keys.complete(ref(), status=200, body=b"{}")
        assert sorted(type(answer).__name__ for answer in await asyncio.gather(*waiting)) == ["Fresh"] + ["Replay"] * 4


async def test_a_waiting_caller_that_leaves_changes_nothing(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        keys = parts.idempotency
        await keys.begin(ref())
        waiting = asyncio.create_task(keys.begin(ref()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await keys.complete(ref(), status=200, body=b"{}")
        assert isinstance(await keys.begin(ref()), Replay)


async def test_keys_are_forgotten_after_a_day(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_working=False, is_observed=False, clock=clock) as parts:
        keys = parts.idempotency
        await keys.begin(ref())
        await keys.complete(ref(), status=200, body=b"{}")
        clock.advance(24 * 3600 - 1)
        assert isinstance(await keys.begin(ref()), Replay)
        clock.advance(1)
        assert isinstance(await keys.begin(ref(body=b"2")), Fresh)
        await keys.abandon(ref(body=b"2"))
        await parts.plane.store.idempotency.purge(clock.now())
        assert parts.plane.store._reader.row("SELECT COUNT(*) FROM idempotency_keys") == (0,)


async def test_a_create_whose_server_died_before_the_answer_is_not_done_again(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        worker = asyncio.create_task(parts.plane.worker.run())
        await asyncio.sleep(0)
        await parts.idempotency.begin(ref())
        _, operation = await parts.plane.sandboxes.create(
            parts.call("createSandbox", idempotency=ref()), SandboxSpec(template="base")
        )
        worker.cancel()
    async with command_plane(tmp_path) as parts:  # nobody called complete
        found = await parts.idempotency.begin(ref())
        assert found == Linked(target_id=operation.id, status=None)


async def test_accounts_whose_server_died_before_the_answer_are_not_made_again(tmp_path: Path) -> None:
    of_user, of_password, of_project = (ref(path=f"POST /{name}") for name in ("users", "password", "projects"))
    async with command_plane(tmp_path, is_working=False) as parts:
        user, _ = await parts.accounts.create_user(
            parts.call("createUser", idempotency=of_user), email="a@example.com", role=Role.MEMBER
        )
        await parts.accounts.reset_password(parts.call("resetPassword", idempotency=of_password), user.id)
        project = await parts.projects.create(parts.call("createProject", idempotency=of_project), name="one")
    async with command_plane(tmp_path, is_working=False) as parts:  # nobody called complete
        for key, target in ((of_user, user.id), (of_password, user.id), (of_project, project.id)):
            assert await parts.idempotency.begin(key) == Linked(target_id=target, status=None)


@pytest.mark.parametrize("place", ["command.after_create", "process.after_start"])
async def test_a_command_whose_server_died_is_answered_with_the_same_process(tmp_path: Path, place: str) -> None:
    node = FakeNode()
    key = ref(path="POST /v1/sandboxes/x/commands")
    async with command_plane(tmp_path, node=node) as parts:
        sandbox = await parts.plane.running()
        await parts.idempotency.begin(key)
        arm(f"{place}:error")
        try:
            with pytest.raises(FailpointError):
                await parts.commands.create(parts.call(idempotency=key), sandbox.id, command(start_now=True))
        finally:
            arm("")
    async with command_plane(tmp_path, node=node) as parts:
        found = await parts.idempotency.begin(key)
        assert isinstance(found, Linked)
        process, secret = await parts.commands.replay_create(parts.call(), sandbox.id, found.target_id)
        assert process.id == found.target_id
        assert (await parts.commands.verify_session_token(secret.secret)).session_id == process.session_id
        assert len(node.sessions) == 1
        assert len((await parts.commands.list(parts.who, sandbox.id)).items) == 1


async def test_a_request_that_died_before_its_change_runs_again(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        assert isinstance(await parts.idempotency.begin(ref()), Fresh)
    async with command_plane(tmp_path, is_working=False) as parts:
        assert isinstance(await parts.idempotency.begin(ref()), Fresh)


async def test_two_servers_that_both_think_they_are_first_make_one_thing(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        one, two = parts.idempotency, Idempotency(parts.plane.store, parts.plane.clock)
        assert isinstance(await one.begin(ref()), Fresh)
        assert isinstance(await two.begin(ref()), Fresh)
        outcomes = await asyncio.gather(
            *(parts.commands.create(parts.call(idempotency=ref()), sandbox.id, command()) for _ in range(2)),
            return_exceptions=True,
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["IdempotencyConflict", "tuple"]
        assert len((await parts.commands.list(parts.who, sandbox.id)).items) == 1


async def test_secrets_and_very_long_answers_are_not_kept_only_what_was_made(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        keys = parts.idempotency
        await keys.begin(ref())
        call = parts.call("createToken", idempotency=ref())
        token, secret = await parts.tokens.create(call, TokenRequest(name="t", scopes=frozenset({Scope.ADMIN})))
        await keys.complete(ref(), status=201, body=secret.encode(), keep_body=False)
        assert await keys.begin(ref()) == Linked(target_id=token.id, status=201)
        long = ref("k2")
        await keys.begin(long)
        await keys.complete(long, status=200, body=bytes(MAX_KEPT_BODY + 1))
        assert await keys.begin(long) == Linked(target_id="", status=200)
    for file in tmp_path.glob("space.db*"):
        assert secret.encode() not in file.read_bytes()


async def test_a_change_that_was_refused_leaves_the_key_unlinked(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        await parts.idempotency.begin(ref())
        with pytest.raises(NotFound):
            await parts.commands.create(parts.call(idempotency=ref()), "sbx" + "0" * 26, command())
        await parts.idempotency.abandon(ref())
        assert isinstance(await parts.idempotency.begin(ref()), Fresh)


@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb", "a\0"])
async def test_a_key_of_no_acceptable_form_is_refused(tmp_path: Path, key: str) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        with pytest.raises(InvalidRequest):
            await parts.idempotency.begin(ref(key))
