"""Templates in memory."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from space.core.errors import NotFound
from space.core.template import Template

BASE = Template(
    name="base",
    tag="latest",
    digest="sha256:" + "0" * 64,
    rootfs=Path("/nonexistent"),
    user="user",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    size_bytes=1,
)


class FakeTemplates:
    """`core.ports.Templates` with what it is given."""

    def __init__(self, *templates: Template) -> None:
        self._templates = templates or (BASE,)

    async def resolve(self, reference: str) -> Template:
        for template in self._templates:
            if reference in (template.name, f"{template.name}:{template.tag}", template.digest):
                return template
        raise NotFound(f"no template {reference!r}", field="template")

    async def list(self) -> Sequence[Template]:
        return self._templates
