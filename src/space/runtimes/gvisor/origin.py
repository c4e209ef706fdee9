"""What a checkpoint was made with, beside runsc's own files in its directory.

A restored kernel opens the files of its mounts again by name and takes whatever it finds there, so they must be the
same: the template's (the node sees to that) and the agent's, whose programs the guest has in memory.  After an update
of SPACE a machine of before goes on with the agent that it had, as long as that is still beside the present one.
"""

import json
import re
from pathlib import Path

from space.core.errors import RuntimeFailed
from space.runtimes.gvisor import bundle

FILE = "origin.json"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def note(bundle_dir: Path, into: Path) -> None:
    """Write beside a checkpoint which agent the machine of this bundle has."""
    agent = bundle.agent_dir(bundle_dir).resolve().name
    (into / FILE).write_text(json.dumps({"agent": agent}))


def agent_dir(snapshot: Path, present: Path) -> Path:
    """Return the agent's directory that a machine from this checkpoint needs; raises `RuntimeFailed`."""
    try:
        name = json.loads((snapshot / FILE).read_text())["agent"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeFailed(f"{snapshot.name} is no checkpoint: {error}") from error
    place = present.resolve()
    if place.name != name:
        place = place.with_name(name) if isinstance(name, str) and NAME.fullmatch(name) else place / "nothing"
    if not place.is_dir():
        raise RuntimeFailed("the checkpoint was made with a guest agent that this host does not have")
    return place
