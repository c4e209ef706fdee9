"""What the server and whoever starts it agree on; imports nothing heavy, so that starting it takes no time."""

from pathlib import Path

import space

NAME = "up"  #: of the files in `run/`
SOURCE_ROOT = Path(space.__file__).parent.parent


def first_password(email: str, password: str) -> str:
    """Return the sentence that shows the first administrator's password, once."""
    return f"  First start: the administrator is {email}, password {password}\n  It is shown only now; keep it."
