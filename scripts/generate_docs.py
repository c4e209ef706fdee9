"""Write the parts of the documents that the code knows better: `python scripts/generate_docs.py [--check]`.

A document marks such a part with `<!-- generated: NAME -->` and `<!-- end -->`; `PARTS` says what goes between them.
With `--check` nothing is written, and the exit code is 1 if something would be.
"""

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from space import config
from space.core import errors as core
from space.core.lifecycle import RULES, Observation, State, after
from space.server.errors import STATUS

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "ARCHITECTURE.md",
    "docs/errors.md",
    "docs/settings.md",
)
_PART = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def lifecycle_diagram() -> str:
    """Draw the resting states; an arrow is an operation that succeeded, or what happens unasked."""
    arrows = defaultdict(list)
    for kind, rule in RULES.items():
        if rule.end is None or kind == "delete":
            continue
        for start in sorted(rule.start, key=list(State).index):
            arrows[start, rule.end].append(str(kind))
    for kind, rule in RULES.items():
        if rule.on_error is not None:
            for start in rule.start:
                arrows[start, rule.on_error].append(f"{kind} failed")
    for observation in Observation:
        for state in State:
            if after(observation, state) is not state:
                arrows[state, after(observation, state)].append(observation.replace("_", " "))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.PENDING}"]
    lines += [f"    {start} --> {end}: {', '.join(names)}" for (start, end), names in arrows.items()]
    lines += [f"    {State.DELETED} --> [*]", "```", ""]
    lines += [f"From every state, `delete` leads to `{State.DELETED}`."]
    return "\n".join(lines) + "\n"


def lifecycle_table() -> str:
    """Tell each rule in a row."""
    rows = [
        "| operation | from | shown meanwhile | on success | on failure | done already in | notes |",
        "|" + "---|" * 7,
    ]
    for kind, rule in RULES.items():
        notes = []
        if rule.preempts:
            notes.append("wins over the operation that holds the sandbox")
        if rule.joins:
            notes.append("a second request joins the first")
        if rule.starts_machine:
            only = f" from {_states(rule.starts_machine)}" if rule.starts_machine != rule.start else ""
            notes.append(f"raises the generation{only}")
        start = "any but deleted" if rule.start == frozenset(State) - {State.DELETED} else _states(rule.start)
        end, failed = rule.end or "stays", rule.on_error or "stays"
        rows.append(
            f"| {kind} | {start} | {rule.during or 'the resting state'} | {end} | {failed} "
            f"| {_states(rule.satisfied) or '-'} | {'; '.join(notes)} |"
        )
    return "\n".join(rows) + "\n"


def _states(states: frozenset[State]) -> str:
    return ", ".join(sorted(states, key=list(State).index))


def error_table() -> str:
    """Tell each code in a row, with the cases that share it."""
    rows = ["| code | status | retry | when |", "|---|---|---|---|"]
    by_code: dict[str, list[type[core.SpaceError]]] = defaultdict(list)
    for error in _errors(core.SpaceError):
        by_code[error.code].append(error)
    for code, kinds in by_code.items():
        statuses = sorted({STATUS[kind] for kind in kinds})
        retryable = {kind.retryable for kind in kinds}
        retry = "yes" if retryable == {True} else "no" if retryable == {False} else "as `retryable` says"
        when = " ".join(_first_paragraph(kind) for kind in kinds)
        rows.append(f"| `{code}` | {', '.join(map(str, statuses))} | {retry} | {when} |")
    return "\n".join(rows) + "\n"


def _errors(kind: type[core.SpaceError]) -> Iterator[type[core.SpaceError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == core.__name__:
            yield from _errors(child)


def _first_paragraph(thing: type) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def settings_table() -> str:
    """Tell each setting of the server in a row, as config.py describes it."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, meaning in _descriptions():
        default = config.Settings.model_fields[name].default
        shown = "-" if default is None else f"`{default.value if hasattr(default, 'value') else default}`"
        rows.append(f"| `SPACE_{name.upper()}` | {shown} | {meaning} |")
    return "\n".join(rows) + "\n"


def _descriptions() -> Iterator[tuple[str, str]]:
    """Yield each field of `Settings` with the string below it."""
    tree = ast.parse(inspect.getsource(config))
    settings = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    name: str | None = None
    for node in settings.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if name is not None:
                yield name, ""
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name is not None:
            yield name, " ".join(str(node.value.value).split())
            name = None
        elif name is not None:
            yield name, ""
            name = None


PARTS: dict[str, Callable[[], str]] = {
    "lifecycle-diagram": lifecycle_diagram,
    "lifecycle-table": lifecycle_table,
    "errors": error_table,
    "settings": settings_table,
}


def generate(text: str) -> str:
    """Return a document with its marked parts made anew."""
    return _PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", text)


def main() -> None:
    """Write all documents, or check them."""
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        fresh = generate(text)
        if fresh != text:
            stale.append(name)
            if not check:
                path.write_text(fresh)
    if stale and check:
        raise SystemExit(f"not as the code says: {', '.join(stale)}; run: python scripts/generate_docs.py")


if __name__ == "__main__":
    main()
