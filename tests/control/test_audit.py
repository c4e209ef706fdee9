"""The audit log: every change is in it or did not happen, and only those who may read it do."""

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest

from space.control.audit import entry_for
from space.core.account import Scope
from space.core.errors import InvalidRequest, LimitExceeded, PermissionDenied
from space.core.store import AuditFilter
from space.testing.clock import FakeClock
from space.testing.commands import CommandPlane, command, command_plane
from space.testing.control_plane import OTHER_PROJECT, principal

pytestmark = pytest.mark.anyio


async def write(parts: CommandPlane, count: int, *, action: str = "probe", project: str | None = None) -> None:
    for number in range(count):
        entry = entry_for(parts.call(action), parts.plane.clock.now(), target=f"t{number}")
        if project is not None:
            entry = dataclasses.replace(entry, project_id=project)  # type: ignore[arg-type]
        await parts.audit.record(entry)


async def test_a_change_and_its_entry_are_one_transaction(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        sandbox = await parts.plane.running()
        process, _ = await parts.commands.create(parts.call("createCommand"), sandbox.id, command("prog", "s3cret"))
        (entry,) = await parts.audited(action="createCommand")
        assert (entry.target, entry.outcome, entry.request_id) == (process.id, "ok", "req-1")
        assert entry.details == {"sandbox_id": sandbox.id, "program": "prog"}  # arguments may hold secrets

        run = parts.plane.store._writer.run

        async def failing(function):  # type: ignore[no-untyped-def]
            def job(tx):  # type: ignore[no-untyped-def]
                function(tx)
                raise LimitExceeded("as if the disk had filled up at the last moment")

            return await run(job)

        parts.plane.store._writer.run = failing  # type: ignore[method-assign]
        with pytest.raises(LimitExceeded):
            await parts.commands.create(parts.call("createCommand"), sandbox.id, command())
        parts.plane.store._writer.run = run  # type: ignore[method-assign]
        assert len(await parts.audited(action="createCommand")) == 1
        assert len((await parts.commands.list(parts.who, sandbox.id)).items) == 1


async def test_entries_are_paged_newest_first(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        await write(parts, 7)
        seen, cursor = [], None
        while True:
            page = await parts.audit.list(parts.who, AuditFilter(action="probe"), limit=3, cursor=cursor)
            seen += [entry.target for entry in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == [f"t{number}" for number in reversed(range(7))]
        exported = [entry.target async for entry in parts.audit.export(parts.who, AuditFilter(action="probe"))]
        assert exported == seen
        for bad in ("x", "-1", "1 OR 1=1", "9" * 30, "٣"):
            with pytest.raises(InvalidRequest):
                await parts.audit.list(parts.who, AuditFilter(), cursor=bad)


async def test_filters_find_what_is_far_back_in_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.storage.sql.audit._WINDOW", 10)
    async with command_plane(tmp_path, is_working=False) as parts:
        await write(parts, 1, action="rare")
        await write(parts, 60)
        (found,) = await parts.audited(action="rare")
        assert found.target == "t0"
        assert len(await parts.audited(action="probe", target="t59")) == 1
        assert await parts.audited(action="never") == []
        assert len([entry async for entry in parts.audit.export(parts.who, AuditFilter(action="probe"))]) == 60


async def test_filters_by_time_and_outcome(tmp_path: Path) -> None:
    clock = FakeClock()
    async with command_plane(tmp_path, is_working=False, is_observed=False, clock=clock) as parts:
        clock.advance(100)
        start = clock.now()
        for _ in range(5):
            await write(parts, 1)
            clock.advance(10)
        refusal = PermissionDenied("no", scope="files:write")
        await parts.audit.refused(parts.call("writeFile"), refusal, target="sbx1")

        between = await parts.audited(after=start + timedelta(seconds=10), before=start + timedelta(seconds=30))
        assert [(entry.at - start).total_seconds() for entry in between] == [10, 20]
        (refused,) = await parts.audited(outcome="refused")
        assert (refused.action, refused.outcome, refused.target) == ("writeFile", "forbidden", "sbx1")
        assert refused.details == {"scope": "files:write"}
        assert await parts.audited(after=clock.now() + timedelta(days=1)) == []
        assert await parts.audited(before=start - timedelta(days=1)) == []


async def test_a_reader_of_one_project_sees_nothing_of_another(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        await write(parts, 2)
        await write(parts, 3, project=OTHER_PROJECT)
        reader = principal(OTHER_PROJECT, scopes=frozenset({Scope.AUDIT_READ}))
        seen = (await parts.audit.list(reader, AuditFilter())).items
        assert {entry.project_id for entry in seen} == {OTHER_PROJECT}
        own = parts.who.project_id
        assert (await parts.audit.list(reader, AuditFilter(project_id=own))).items == ()
        assert [entry async for entry in parts.audit.export(reader, AuditFilter(project_id=own))] == []
        with pytest.raises(PermissionDenied):
            await parts.audit.list(principal(scopes=frozenset({Scope.SANDBOXES_READ})), AuditFilter())


async def test_what_callers_choose_is_bounded(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        entry = entry_for(parts.call(), parts.plane.clock.now(), target="t" * 10_000, note="n" * 10_000, none=None)
        assert len(entry.target or "") == 256
        assert {key: len(value) for key, value in entry.details.items()} == {"note": 256}
