import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from space_guest.output import TIGHT_WINDOW, Budget, OutputStream
from space_guest.protocol import CHUNK, OUTPUT_WINDOW, ProtocolError


class Stream(RuleBasedStateMachine):
    """Whatever is sent, acknowledged and sent again: the node can always put the stream together."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget()
        self.stream = OutputStream(1, self.budget)
        self.written = bytearray()
        self.got = bytearray()

    @rule(data=st.binary(min_size=1, max_size=3000))
    def append(self, data):
        self.stream.append(data)
        self.written += data

    @rule()
    def send(self):
        piece = self.stream.take()
        if piece is None:
            assert self.stream.sent == self.stream.end
        else:
            offset, data = piece
            assert len(data) <= CHUNK
            assert offset == len(self.got)
            self.got += data

    @rule(part=st.floats(0, 1))
    def acknowledge(self, part):
        self.stream.acknowledge(int(len(self.got) * part))

    @precondition(lambda self: self.got)
    @rule(part=st.floats(0, 1))
    def reconnect(self, part):
        """The node has what it journalled: all that it acknowledged, and maybe more."""
        kept = self.stream.base + int((len(self.got) - self.stream.base) * part)
        del self.got[kept:]
        assert self.stream.rewind(kept)

    @invariant()
    def consistent(self):
        assert bytes(self.got) == bytes(self.written[: len(self.got)])
        assert self.stream.base <= self.stream.sent <= self.stream.end == len(self.written)
        assert self.budget.used == self.stream.end - self.stream.base


TestStream = Stream.TestCase


def test_a_stream_keeps_a_window_and_less_when_all_together_keep_much():
    budget = Budget(limit=2 * OUTPUT_WINDOW)
    streams = [OutputStream(1, budget) for _ in range(5)]
    for stream in streams:
        while stream.room:
            stream.append(bytes(min(stream.room, CHUNK)))
    kept = [stream.end for stream in streams]
    assert kept == [OUTPUT_WINDOW] * 2 + [TIGHT_WINDOW] * 3
    streams[0].discard()
    assert budget.used == sum(kept[1:])


@given(st.integers(0, 100), st.integers(0, 200))
def test_what_is_gone_or_never_was_cannot_be_sent_again(acknowledged, offset):
    stream = OutputStream(1, Budget())
    stream.append(bytes(100))
    stream.take()
    stream.acknowledge(acknowledged)
    assert stream.rewind(offset) is (acknowledged <= offset <= 100)


def test_output_that_was_never_sent_cannot_be_acknowledged():
    stream = OutputStream(1, Budget())
    stream.append(b"abc")
    with pytest.raises(ProtocolError):
        stream.acknowledge(1)
