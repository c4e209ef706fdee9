"""The guest agent is what a machine starts with."""

from types import SimpleNamespace

from space.runtimes.first_process import guest_agent


def test_the_agent_is_told_its_port_and_where_its_token_is_but_not_the_token() -> None:
    spec = SimpleNamespace(agent_port=7000, default_user="user", token="a secret")
    argv, env = guest_agent(spec, "fd:3")  # type: ignore[arg-type]
    assert argv[-3:] == ["7000", "fd:3", "user"]
    assert "a secret" not in repr((argv, env))
