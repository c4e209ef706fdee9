"""The composition root: the only package that knows every part.

`compose.py` puts the parts together, `listener.py` serves them, `up.py` runs them in this process, `detached.py`
in one of its own; `doctor.py` says what works here.
"""

from space.app.detached import start_detached, stop
from space.app.doctor import doctor
from space.app.up import run_up

__all__ = ["doctor", "run_up", "start_detached", "stop"]
