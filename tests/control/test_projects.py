"""Projects and their quotas."""

from pathlib import Path

import pytest

from space.control.projects import QUOTA_NAMES, Quotas
from space.core.account import READ_ONLY
from space.core.errors import AlreadyExists, InvalidRequest, LimitExceeded, NotFound, PermissionDenied
from space.testing.commands import command_plane
from space.testing.control_plane import OTHER_PROJECT, PROJECT, principal

pytestmark = pytest.mark.anyio


async def test_a_quota_holds_from_the_moment_it_is_set(tmp_path: Path) -> None:
    async with command_plane(tmp_path) as parts:
        await parts.plane.running()
        await parts.projects.update(parts.call("updateProject"), PROJECT, {"max_sandboxes": 1})
        with pytest.raises(LimitExceeded) as refused:
            await parts.plane.create()
        assert refused.value.details["quota"] == "sandboxes"
        await parts.projects.update(parts.call("updateProject"), PROJECT, {"max_sandboxes": None})
        await parts.plane.running()
        assert [entry.details for entry in await parts.audited(action="updateProject")] == [
            {"max_sandboxes": "1"},
            {"max_sandboxes": "None"},
        ]


async def test_projects_have_names_of_their_own(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        made = await parts.projects.create(parts.call(), name="lab-1", quotas=Quotas(max_vcpus=4))
        assert (await parts.projects.get(parts.who, made.id)).max_vcpus == 4
        with pytest.raises(AlreadyExists):
            await parts.projects.create(parts.call(), name="lab-1")
        with pytest.raises(AlreadyExists):
            await parts.projects.update(parts.call(), PROJECT, {"name": "lab-1"})
        with pytest.raises(NotFound):
            await parts.projects.update(parts.call(), "prj" + "c" * 26, {"name": "lab-2"})
        seen = [project.id for project in (await parts.projects.list(parts.who)).items]
        assert seen == sorted(seen)
        assert made.id in seen


async def test_others_see_their_own_project_and_change_none(tmp_path: Path) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        who = principal(OTHER_PROJECT, scopes=READ_ONLY)
        assert [project.id for project in (await parts.projects.list(who)).items] == [OTHER_PROJECT]
        with pytest.raises(NotFound):
            await parts.projects.get(who, PROJECT)
        with pytest.raises(PermissionDenied):
            await parts.projects.create(parts.call(who=who), name="mine")
        with pytest.raises(PermissionDenied):
            await parts.projects.update(parts.call(who=who), OTHER_PROJECT, {"max_sandboxes": None})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "A"),
        ("name", "-a"),
        ("name", "a" * 64),
        ("name", 7),
        ("id", "prj"),
        ("created_at = 0 --", 1),
        *((quota, value) for quota in sorted(QUOTA_NAMES) for value in (-1, 1.5, "3", True, 10**12)),
    ],
)
async def test_nonsense_is_refused_by_field(tmp_path: Path, field: str, value: object) -> None:
    async with command_plane(tmp_path, is_working=False) as parts:
        with pytest.raises(InvalidRequest) as refused:
            await parts.projects.update(parts.call(), PROJECT, {field: value})
        assert refused.value.details["field"] == field
