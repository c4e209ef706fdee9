"""The steps of each kind of operation, as data.

The worker runs them in order and records each before the next begins; after a crash it goes on at the first that is
not recorded.  So each step must be idempotent.  A kind without an entry is refused when it is asked for.
"""

from collections.abc import Mapping, Sequence

from space.control.steps.create import start_machine
from space.control.steps.delete import remove_machine
from space.control.steps.step import Step
from space.core.lifecycle import Kind

STEPS: Mapping[Kind, Sequence[Step]] = {
    Kind.CREATE: (start_machine,),
    Kind.DELETE: (remove_machine,),
}
