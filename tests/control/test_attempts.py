"""Counting failed logins."""

import pytest

from space.control.attempts import Allowance, Attempts, network_of
from space.core.errors import LimitExceeded
from space.testing.clock import FakeClock


def test_failures_are_forgotten_one_by_one() -> None:
    clock = FakeClock()
    attempts = Attempts(clock, by_account=Allowance(failures=2, seconds=10))
    attempts.begin(address=None, account="a")
    clock.advance(6)
    attempts.begin(address=None, account="a")
    with pytest.raises(LimitExceeded) as refused:
        attempts.begin(address=None, account="a")
    assert refused.value.retry_after == 4
    clock.advance(4)
    attempts.begin(address=None, account="a")
    with pytest.raises(LimitExceeded):
        attempts.begin(address=None, account="a")


def test_a_refused_attempt_does_not_count() -> None:
    clock = FakeClock()
    attempts = Attempts(clock, by_account=Allowance(failures=1, seconds=10))
    attempts.begin(address=None, account="a")
    for _ in range(5):
        clock.advance(1)
        with pytest.raises(LimitExceeded):
            attempts.begin(address=None, account="a")
    clock.advance(5)
    attempts.begin(address=None, account="a")


def test_a_success_takes_back_only_itself() -> None:
    attempts = Attempts(FakeClock(), by_account=Allowance(failures=3, seconds=10))
    attempts.begin(address="10.0.0.1", account="a")
    attempts.begin(address="10.0.0.1", account="a").take_back()
    attempts.begin(address="10.0.0.1", account="a")
    attempts.begin(address="10.0.0.1", account="a")
    with pytest.raises(LimitExceeded):
        attempts.begin(address="10.0.0.1", account="a")


def test_attacker_with_many_names_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.control.attempts._MAX_TRACKED", 100)
    attempts = Attempts(FakeClock(), by_address=Allowance(failures=10**6, seconds=10))
    for number in range(1000):
        attempts.begin(address="10.0.0.1", account=str(number))
    assert len(attempts._failures) == 100
    assert "address 10.0.0.1" in attempts._failures  # in use all the time, so never the oldest


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("unix:", "unix:"),
        ("x" * 100, "x" * 64),
    ],
)
def test_an_attacker_is_taken_to_own_a_network(address: str, network: str) -> None:
    assert network_of(address) == network
