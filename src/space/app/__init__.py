"""The composition root: the only package that knows every part.

`compose.py` puts the parts together, `listener.py` serves them, `up.py` runs them in this process, `detached.py`
in one of its own; `doctor.py` says what works here.
"""
