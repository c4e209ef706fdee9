"""Places where a test can make SPACE die or fail, to prove that any crash is repaired.

`SPACE_FAILPOINT=NAME:ACTION[:N]` (several divided by commas) acts on the N-th time (default 1) that the place is
reached.  `kill` sends SIGKILL to this process, `error` raises.  Unset, a failpoint costs one dictionary look-up.
"""

import os
import signal

_armed: dict[str, tuple[str, int]] = {}
_reached: dict[str, int] = {}


class FailpointError(RuntimeError):
    """What the action `error` raises."""


def arm(setting: str) -> None:
    """Replace the armed failpoints by those in `setting`; an empty one disarms all."""
    _armed.clear()
    _reached.clear()
    for item in filter(None, setting.split(",")):
        name, _, rest = item.partition(":")
        action, _, count = rest.partition(":")
        if action not in ("kill", "error"):
            raise ValueError(f"unknown failpoint action {action!r} in {item!r}; use kill or error")
        _armed[name] = (action, int(count or 1))


def failpoint(name: str) -> None:
    """Mark a step boundary; `name` is dotted, e.g. `create.after_admit`."""
    if name not in _armed:
        return
    action, count = _armed[name]
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] != count:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise FailpointError(name)


arm(os.environ.get("SPACE_FAILPOINT", ""))
