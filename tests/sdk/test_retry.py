from hypothesis import given
from hypothesis import strategies as st

from space.sdk.errors import ConflictError, ServiceUnavailableError, error_from_answer
from space.sdk.retry import Attempts, Reconnection, RetryPolicy


def test_delays_double_with_jitter_and_end_after_five_attempts() -> None:
    attempts = Attempts(RetryPolicy())
    delays = [attempts.delay_after(ServiceUnavailableError("x", retryable=True)) for _ in range(5)]
    assert delays[4] is None
    for delay, longest in zip(delays[:4], (1, 2, 4, 8), strict=True):
        assert delay is not None
        assert longest / 2 <= delay <= longest


def test_retry_after_is_honoured() -> None:
    attempts = Attempts(RetryPolicy())
    assert attempts.delay_after(ServiceUnavailableError("x", retryable=True, retry_after=7)) == 7
    assert attempts.delay_after(ConflictError("x", retryable=False, retry_after=7)) is None


def test_retry_after_may_be_a_date() -> None:
    headers = {"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}
    assert error_from_answer(503, headers, None, now=90.0).retry_after == 10.0
    assert error_from_answer(503, {"retry-after": "soon"}, None, now=90.0).retry_after is None


@given(st.lists(st.floats(0, 30), max_size=60), st.floats(0.1, 200))
def test_patience_counts_from_the_last_sign_of_life(waits: list[float], patience: float) -> None:
    reconnection = Reconnection(patience)
    reconnection.saw_life(0.0)
    now = 0.0
    for wait in waits:
        delay = reconnection.delay_at(now)
        if now >= patience:
            assert delay is None
            reconnection.saw_life(now)
            assert reconnection.delay_at(now) is not None
            return
        assert delay is not None
        assert 0 < delay <= min(5.0, patience - now)
        now += wait
