import asyncio
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from space.core.errors import InvalidRequest, NotFound, SpaceError
from space.core.template import Template
from space.templates.store import Description, TemplateStore
from space.templates.tree import tree_digest

pytestmark = pytest.mark.anyio


async def add(store: TemplateStore, content: str = "one", *, name: str = "base", tag: str = "latest") -> Template:
    async with store.building() as place:
        (place / "rootfs").mkdir()
        (place / "rootfs/file").write_text(content)
        digest, size = tree_digest(place / "rootfs")
        return store.publish(
            place,
            Description(
                name=name,
                tag=tag,
                digest=digest,
                recipe="sha256:recipe",
                user="user",
                env={"LANG": "C.UTF-8"},
                created_at=datetime(2026, 12, 1, tzinfo=UTC),
                size_bytes=size,
                packages={"bash": "5"},
            ),
        )


@pytest.fixture
def store(tmp_path: Path) -> TemplateStore:
    return TemplateStore(tmp_path / "templates")


async def test_a_template_is_found_by_name_by_tag_and_by_digest(store: TemplateStore) -> None:
    template = await add(store)
    for reference in ("base", "base:latest", template.digest):
        found = await store.resolve(reference)
        assert found == template
        assert (found.rootfs / "file").read_text() == "one"
    assert (template.user, template.env, template.size_bytes) == ("user", {"LANG": "C.UTF-8"}, 3)


async def test_another_process_finds_it_too(store: TemplateStore) -> None:
    template = await add(store)
    assert await TemplateStore(store.root).resolve("base") == template


async def test_a_name_moves_to_a_new_build_and_the_old_digest_stays(store: TemplateStore) -> None:
    old = await add(store, "old")
    new = await add(store, "new")
    assert (await store.resolve("base")).digest == new.digest != old.digest
    assert ((await store.resolve(old.digest)).rootfs / "file").read_text() == "old"


async def test_publishing_the_same_content_again_keeps_the_tree_that_sandboxes_use(store: TemplateStore) -> None:
    first = await add(store)
    inode = first.rootfs.stat().st_ino
    second = await add(store, tag="again")
    assert (second.digest, second.rootfs.stat().st_ino) == (first.digest, inode)


async def test_the_list_is_what_names_mean_now(store: TemplateStore) -> None:
    assert await store.list() == []
    await add(store, "old")
    await add(store, "new")
    await add(store, "old", name="alpine", tag="3")
    assert [(template.name, template.tag) for template in await store.list()] == [("alpine", "3"), ("base", "latest")]


async def test_an_unknown_template_is_not_found_and_the_message_names_the_known(store: TemplateStore) -> None:
    with pytest.raises(NotFound, match="none is built yet"):
        await store.resolve("base")
    await add(store)
    for reference in ("other", "base:other", "sha256:" + "0" * 64):
        with pytest.raises(NotFound, match="there are: base"):
            await store.resolve(reference)


@pytest.mark.parametrize(
    "reference",
    [
        *(
            "",
            "..",
            "../base",
            "base/../base",
            "/etc",
            "base:",
            "base:..",
            "base:a/b",
            "Base",
            "a" * 64,
            "base\0",
            "base\n",
        ),
        *("sha256:abc", "sha256:" + "A" * 64, "sha256:../../etc", "base:latest:x", "báse"),
    ],
)
async def test_a_reference_of_another_form_is_refused(store: TemplateStore, reference: str) -> None:
    await add(store)
    with pytest.raises(InvalidRequest, match="NAME, NAME:TAG or sha256:"):
        await store.resolve(reference)


async def test_a_damaged_description_is_an_error_of_ours_not_of_the_caller(store: TemplateStore) -> None:
    template = await add(store)
    (template.rootfs.parent / "template.json").write_text("{")
    with pytest.raises(SpaceError, match="damaged") as caught:
        await TemplateStore(store.root).resolve("base")
    assert caught.value.code == "internal"


async def test_a_pointer_that_holds_something_else_than_a_digest_means_nothing(store: TemplateStore) -> None:
    await add(store)
    (store.root / "names/base/latest").write_text("../../../../etc\n")
    with pytest.raises(NotFound):
        await store.resolve("base")


async def test_a_failed_build_leaves_nothing(store: TemplateStore) -> None:
    async def fail() -> None:
        async with store.building() as place:
            (place / "rootfs").mkdir()
            raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        await fail()
    assert sorted(path.name for path in store.root.iterdir()) == ["lock"]


async def test_a_second_builder_waits_for_the_first(store: TemplateStore) -> None:
    order: list[str] = []
    is_waiting = asyncio.Event()

    async def second() -> None:
        async with store.building(on_wait=is_waiting.set):
            order.append("second")

    async with store.building():
        task = asyncio.create_task(second())
        await is_waiting.wait()
        order.append("first")
    await task
    assert order == ["first", "second"]


BUILDER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from space.templates.store import TemplateStore
from tests_templates_store import add
asyncio.run(add(TemplateStore(Path(sys.argv[1])), "new"))
"""


@pytest.mark.parametrize("place", ["template.before_publish", "template.before_name"])
async def test_a_builder_killed_at_any_step_leaves_the_old_template_and_the_next_build_works(
    store: TemplateStore, tmp_path: Path, place: str
) -> None:
    old = await add(store, "old")
    (tmp_path / "tests_templates_store.py").write_text(Path(__file__).read_text())
    killed = subprocess.run(
        [sys.executable, "-c", BUILDER, str(store.root), str(tmp_path)],
        env={"SPACE_FAILPOINT": f"{place}:kill", "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert await TemplateStore(store.root).resolve("base") == old
    new = await add(store, "new")
    assert await TemplateStore(store.root).resolve("base") == new
    assert list((store.root / "build").glob("*")) == []
