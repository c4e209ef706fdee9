"""The rules load, and their text is what it should be."""

import uuid

import pytest

from space.host import nftables
from space.host.process import ProcessFailed, run

pytestmark = pytest.mark.anyio


def test_elements_are_one_line_and_nothing_is_nothing() -> None:
    assert nftables.admit([]) == ""
    assert nftables.admit([("sb-1", "10.72.0.3"), ("sb-2", "10.72.0.5")]) == (
        'add element inet space slots { "sb-1" . 10.72.0.3, "sb-2" . 10.72.0.5 }\n'
    )
    assert nftables.expel([("sb-1", "10.72.0.3")]).startswith("delete element")


def test_every_chain_that_ends_a_path_drops_by_default() -> None:
    for chain in ("input", "forward", "output"):
        rules = nftables.RULES.split(f"chain {chain} {{")[1].split("}")[0]
        assert "policy drop" in rules


@pytest.mark.root
async def test_rules_load_twice_and_a_broken_text_changes_nothing() -> None:
    name = f"space-test-{uuid.uuid4().hex[:8]}"
    await run(["ip", "netns", "add", name])
    try:
        await nftables.apply(name, nftables.RULES)
        await nftables.apply(name, nftables.RULES)
        with pytest.raises(ProcessFailed):
            await nftables.apply(name, nftables.admit([("sb-1", "10.72.0.3")]) + "nonsense\n")
        shown = (await run(["nft", "list", "table", "inet", "space"], netns=name)).stdout.decode()
        assert "10.72.0.3" not in shown
    finally:
        await run(["ip", "netns", "delete", name])
