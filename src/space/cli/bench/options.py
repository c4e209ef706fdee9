"""Options that all measurements share."""

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RuntimeOption = Annotated[str | None, typer.Option("--runtime", help="Isolation to use; `space doctor` lists them.")]
CheckOption = Annotated[bool, typer.Option("--check", help="Exit with 1 if a budget is missed.")]
MemoryOption = Annotated[int, typer.Option("--memory", help="Memory of each sandbox in MiB, bare ones too.", min=64)]
