import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space_guest import protocol
from space_guest.handshake import AgentHandshake, AuthenticationFailed, NodeHandshake
from space_guest.protocol import FROM_AGENT, FROM_NODE, HEADER, SIZES, Decoder, Kind, ProtocolError, encode

EVERY = frozenset(Kind)


@st.composite
def frames(draw: st.DrawFn) -> tuple[Kind, int, bytes]:
    kind = draw(st.sampled_from(Kind))
    least, most = SIZES[kind]
    payload = draw(st.binary(min_size=least, max_size=min(most, least + 200)))
    return kind, draw(st.integers(0, protocol.MAX_CHANNEL)), payload


@given(st.lists(frames(), max_size=20), st.lists(st.integers(1, 300), min_size=1, max_size=50))
def test_frames_survive_any_cutting_of_the_stream(sent, cuts):
    stream = b"".join(encode(kind, channel, payload) for kind, channel, payload in sent)
    decoder, received, position, index = Decoder(EVERY), [], 0, 0
    while position < len(stream):
        size = cuts[index % len(cuts)]
        received += decoder.feed(stream[position : position + size])
        position, index = position + size, index + 1
    assert received == sent


@given(st.binary(max_size=2000))
@settings(max_examples=300)
def test_any_bytes_are_frames_or_an_error(data):
    decoder = Decoder(FROM_AGENT)
    try:
        for kind, _, payload in decoder.feed(data):
            assert kind in FROM_AGENT
            least, most = SIZES[kind]
            assert least <= len(payload) <= most
    except ProtocolError:
        pass


@pytest.mark.parametrize("kind", Kind)
def test_sizes_out_of_bounds_are_refused_before_the_payload_comes(kind):
    least, most = SIZES[kind]
    for length in {least - 1, most + 1, 2**32 - 1} - {-1}:
        with pytest.raises(ProtocolError):
            list(Decoder(EVERY).feed(HEADER.pack(kind, 1, length)))
    with pytest.raises(ValueError, match=kind.name):
        encode(kind, 1, bytes(most + 1))


def test_each_end_refuses_what_the_other_may_not_send():
    for accepts, other in ((FROM_NODE, FROM_AGENT), (FROM_AGENT, FROM_NODE)):
        for kind in other - accepts:
            with pytest.raises(ProtocolError):
                list(Decoder(accepts).feed(encode(kind, 1, bytes(SIZES[kind][0]))))


def test_every_kind_has_its_sizes_and_a_sender():
    assert set(SIZES) == EVERY
    assert FROM_NODE | FROM_AGENT == EVERY


def test_frames_before_a_bad_one_are_still_given_out():
    good = encode(Kind.CANCEL, 5)
    decoder = Decoder(FROM_NODE)
    received = []
    with pytest.raises(ProtocolError):  # noqa: PT012 - what came before it is kept
        for frame in decoder.feed(good + b"\xff" * 20):
            received.append(frame)
    assert received == [(Kind.CANCEL, 5, b"")]


@given(st.integers(0, 2**64 - 1), st.binary(min_size=1, max_size=100))
def test_offsets_are_absolute_and_large(offset, data):
    (_, channel, payload), *_ = Decoder(EVERY).feed(protocol.encode_data(7, offset, data))
    assert (channel, protocol.decode_data(payload)) == (7, (offset, data))
    (_, _, payload), *_ = Decoder(EVERY).feed(protocol.encode_output(7, protocol.STDERR, offset, data))
    assert protocol.decode_output(payload) == (protocol.STDERR, offset, data)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b"1", b'"x"', b"\xff\xfe", b'{"a": NaN}', b'{"a": Infinity}', b"[" * 100_000, b"1" * 10_000],
)
def test_only_json_objects_are_objects(payload):
    with pytest.raises(ProtocolError):
        protocol.decode_object(payload)


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(-(2**60), 2**60), st.none(), st.booleans())))
def test_objects_survive(value):
    (_, _, payload), *_ = Decoder(EVERY).feed(protocol.encode_object(Kind.REPLY, 1, value))
    assert protocol.decode_object(payload) == value


def test_output_of_an_unknown_stream_is_refused():
    with pytest.raises(ProtocolError):
        protocol.decode_output(struct.pack("!BQ", 9, 0) + b"x")


def payload_of(frame: bytes) -> bytes:
    return frame[HEADER.size :]


def test_both_ends_that_know_the_token_agree():
    node, agent = NodeHandshake("the token"), AgentHandshake("the token")
    agent.verify(payload_of(node.answer(payload_of(agent.challenge(payload_of(node.hello()))))))


def test_an_end_that_does_not_know_the_token_is_refused():
    node, agent = NodeHandshake("the token"), AgentHandshake("another")
    challenge = payload_of(agent.challenge(payload_of(node.hello())))
    with pytest.raises(AuthenticationFailed):
        node.answer(challenge)
    with pytest.raises(AuthenticationFailed):
        agent.verify(bytes(32))


def test_a_proof_cannot_be_reflected_or_replayed():
    agent = AgentHandshake("the token")
    node = NodeHandshake("the token")
    challenge = payload_of(agent.challenge(payload_of(node.hello())))
    with pytest.raises(AuthenticationFailed):
        agent.verify(challenge[32:])  # the agent's own proof, sent back
    proof = payload_of(node.answer(challenge))
    again = AgentHandshake("the token")
    again.challenge(payload_of(node.hello()))
    with pytest.raises(AuthenticationFailed):
        again.verify(proof)


def test_a_proof_before_a_greeting_and_a_second_greeting_are_refused():
    agent, node = AgentHandshake("the token"), NodeHandshake("the token")
    with pytest.raises(ProtocolError):
        agent.verify(bytes(32))
    agent.challenge(payload_of(node.hello()))
    with pytest.raises(ProtocolError):
        agent.challenge(payload_of(node.hello()))


@given(st.binary(max_size=128))
def test_any_greeting_or_challenge_but_the_right_one_is_refused(data):
    with pytest.raises(ProtocolError):
        AgentHandshake("the token").challenge(data)
    with pytest.raises(ProtocolError):
        NodeHandshake("the token").answer(data)


def test_the_token_is_in_no_frame():
    token = "a very secret token"
    node, agent = NodeHandshake(token), AgentHandshake(token)
    hello = node.hello()
    challenge = agent.challenge(payload_of(hello))
    assert token.encode() not in hello + challenge + node.answer(payload_of(challenge))


def test_a_request_holds_the_largest_argv_that_the_api_takes():
    argv = ["\x01" * 262_144]
    frame = protocol.encode_object(Kind.REQUEST, 1, {"op": "spawn", "argv": argv})
    assert json.loads(payload_of(frame))["argv"] == argv
