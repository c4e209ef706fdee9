"""How a runtime starts the agent: the one place that knows its command line."""

ROOT = "/.space"


def agent_argv(port: int, token_path: str, default_user: str, *, root: str = ROOT) -> list[str]:
    """Return the command line of a machine's first process.

    `token_path` names a file in the guest, readable by root only, that holds the machine's token; `fd:N` names a
    descriptor instead.  `root` is where the directory of `templates.agent.build_agent_dir` is mounted.
    """
    return [
        f"{root}/lib/ld.so",
        "--library-path",
        f"{root}/lib",
        f"{root}/bin/python3",
        *("-I", "-S", "-B", "-X", "utf8"),
        f"{root}/agent.pyz",
        str(port),
        token_path,
        default_user,
    ]


def agent_env(*, root: str = ROOT) -> dict[str, str]:
    """Return the agent's whole environment; commands never see it."""
    return {"PYTHONHOME": root, "LC_ALL": "C.UTF-8"}
