import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.sdk import Output, ProcessExited, ProtocolError, ResyncRequired, SandboxLost, UnknownEvent
from space.sdk.events import decode_event, decode_output
from space.sdk.sse import Frame

SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])


@given(st.binary(max_size=4096), st.integers(0, 1 << 50), SEPARATORS, st.booleans())
def test_output_is_decoded_whatever_the_spacing_and_order(
    data: bytes, offset: int, separators: tuple[str, str], data_first: bool
) -> None:
    body: dict[str, Any] = {"data": base64.b64encode(data).decode(), "offset": offset}
    if not data_first:
        body = dict(reversed(body.items()))
    text = json.dumps(body, separators=separators).encode()
    assert decode_output(text) == (data, offset)


def test_a_field_that_a_newer_server_adds_does_no_harm() -> None:
    assert decode_output(b'{"data":"aGk=","more":"\\"offset\\":9","offset":2}') == (b"hi", 2)
    assert decode_output(b'{"data":"aGk=","offset":2,"more":[{"offset":7}]}') == (b"hi", 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"data":"!!!!","offset":0}',
        b'{"data":"aGk=","offset":"x"}',
        b'{"data":5,"offset":0}',
        b"\xff",
    ],
)
def test_malformed_output_is_an_error_that_names_the_event(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="stdout"):
        decode_event(Frame("stdout", data, "1"))


def test_events_carry_their_position() -> None:
    assert decode_event(Frame("stderr", b'{"data":"aGk=","offset":2}', "77")) == Output("stderr", b"hi", 2, 77)


def test_an_exit_by_signal_has_no_code() -> None:
    event = decode_event(Frame("process_exited", b'{"exit_code":null,"signal":"SIGKILL","reason":"timeout"}', "9"))
    assert isinstance(event, ProcessExited)
    assert (event.exit_code, event.signal, event.reason) == (None, "SIGKILL", "timeout")


def test_the_other_events_are_typed_and_unknown_ones_are_passed_on() -> None:
    assert decode_event(Frame("sandbox_lost", b'{"reason":"oom"}', "5")) == SandboxLost("oom", 5)
    assert decode_event(Frame("resync_required", b'{"oldest_offset":90}', None)) == ResyncRequired(90)
    assert decode_event(Frame("new", b'{"a":1}', "6")) == UnknownEvent("new", {"a": 1}, 6)
