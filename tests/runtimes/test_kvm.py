"""What is said of runtimes that are planned."""

import pytest

from space.core.errors import Unsupported
from space.runtimes.kvm import Planned, kvm_of_this_host, unavailable_runtimes, why_no_kvm

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("cpuinfo", "is_pvm", "has_device", "is_allowed", "said"),
    [
        ("flags : vmx", True, True, True, "PVM"),
        ("flags : sse", False, True, True, "neither vmx nor svm"),
        ("flags : svm", False, False, True, "/dev/kvm is missing"),
        ("flags : vmx", False, True, False, "may not be opened"),
    ],
)
def test_each_reason_against_kvm_is_named(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, is_pvm: bool, has_device: bool, is_allowed: bool, said: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    reason = why_no_kvm(cpuinfo=cpuinfo, is_pvm=is_pvm, has_device=has_device, is_allowed=is_allowed)
    assert reason is not None
    assert said in reason
    assert "; " in reason  # and the remedy


def test_nothing_is_said_against_a_host_that_has_it_all() -> None:
    assert why_no_kvm(cpuinfo="flags : vmx sse", is_pvm=False, has_device=True, is_allowed=True) is None


def test_a_flag_that_only_contains_the_name_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert why_no_kvm(cpuinfo="flags : vmxnet svmx", is_pvm=False, has_device=True, is_allowed=True)


async def test_planned_runtimes_say_no_and_that_they_are_planned() -> None:
    names = [runtime.name for runtime in unavailable_runtimes()]
    assert {"firecracker", "qemu", "cloud-hypervisor"} <= set(names)
    for runtime in unavailable_runtimes():
        found = await runtime.probe()
        assert not found.is_available
        assert "not part of this version" in found.reasons["available"]
    assert kvm_of_this_host() is None or isinstance(kvm_of_this_host(), str)


async def test_starting_a_planned_runtime_is_unsupported_by_name() -> None:
    planned = Planned("firecracker")
    with pytest.raises(Unsupported) as caught:
        await planned.start(None)  # type: ignore[arg-type]
    assert caught.value.details["feature"] == "firecracker"
    assert await planned.recover(None, None) is None  # type: ignore[arg-type]
    assert await planned.sweep(frozenset()) == []
