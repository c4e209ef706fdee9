"""The steps of each kind of operation, as data.

The worker runs them in order and records each before the next begins; after a crash it goes on at the first that is
not recorded.  So each step must be idempotent.
"""

from collections.abc import Mapping, Sequence

from space.control.steps.create import start_machine
from space.control.steps.delete import remove_machine
from space.control.steps.pause import pause_machine, wake_machine
from space.control.steps.step import Step
from space.control.steps.suspend import checkpoint_machine, pin_chunks, upload_snapshot
from space.core.lifecycle import Kind

_SAVE = (checkpoint_machine, pin_chunks, upload_snapshot)
STEPS: Mapping[Kind, Sequence[Step]] = {
    Kind.CREATE: (start_machine,),
    Kind.PAUSE: (pause_machine,),
    Kind.SUSPEND: _SAVE,
    Kind.WAKE: (wake_machine,),
    Kind.FORK: _SAVE,
    Kind.SNAPSHOT: _SAVE,
    Kind.RECOVER: (start_machine,),
    Kind.DELETE: (remove_machine,),
}
