"""Probing: all are named, whatever one of them does."""

import asyncio

import pytest

from space.core.node import Capabilities
from space.runtimes import doctor
from space.runtimes.doctor import probe_all
from space.testing.runtime import FakeRuntime

pytestmark = pytest.mark.anyio


class Hanging(FakeRuntime):
    async def probe(self) -> Capabilities:
        await asyncio.sleep(60)
        raise AssertionError


class Broken(FakeRuntime):
    async def probe(self) -> Capabilities:
        raise RuntimeError("no such luck")


async def test_every_runtime_is_named_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.05)
    found = await probe_all([Hanging(name="one"), FakeRuntime(name="two"), Broken(name="three")])
    assert [each.runtime for each in found] == ["one", "two", "three"]
    assert [each.is_available for each in found] == [False, True, False]
    assert "took more than" in found[0].reasons["available"]
    assert "no such luck" in found[2].reasons["available"]
