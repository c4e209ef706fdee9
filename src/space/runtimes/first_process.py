"""What a machine runs first: the guest agent, started by the interpreter that we bring along."""

from collections.abc import Callable, Mapping, Sequence

from space.core.node import MachineSpec
from space_guest.launch import agent_argv, agent_env

#: Returns argv and environment of pid 1, given the machine and where the guest finds its token (`fd:N` or a path).
FirstProcess = Callable[[MachineSpec, str], tuple[Sequence[str], Mapping[str, str]]]


def guest_agent(spec: MachineSpec, token_path: str) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return how to start the guest agent in this machine."""
    return agent_argv(spec.agent_port, token_path, spec.default_user), agent_env()
