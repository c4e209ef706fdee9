"""Sandboxes on the wire."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from space.core.errors import InvalidRequest
from space.core.sandbox import AutoLifecycle as CoreAutoLifecycle
from space.core.sandbox import OnIdle, SandboxSpec
from space.core.sandbox import Resources as CoreResources
from space.server.schemas import WHOLE, Asked, Instant, Query, Shown, at_least_one
from space.server.v1.schemas.network import NetworkPolicyV1
from space.server.v1.schemas.operations import Operation
from space.server.v1.schemas.shared import Cursor, Env, Limit, Metadata, selection_of

Runtime = Literal["firecracker", "cloud-hypervisor", "gvisor", "qemu"]
TemplateReference = Annotated[
    str,
    Field(
        max_length=200,
        pattern=r"^(sha256:[0-9a-f]{64}|[a-z0-9][a-z0-9._-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,63})?)$",
        description="`name`, `name:tag`, a `sha256:` digest, or the id of a snapshot to go on from.",
        examples=["base"],
    ),
]
ShownState = Literal[
    "creating",
    "running",
    "pausing",
    "paused",
    "suspending",
    "suspended",
    "waking",
    "recovering",
    "deleting",
    "deleted",
    "failed",
]


class Resources(Asked):
    """What a machine may use; each a hard limit inside it."""

    vcpus: Annotated[int, Field(ge=1, le=64), WHOLE] = 1
    memory_mib: Annotated[int, Field(ge=64, le=1_048_576), WHOLE] = 512
    disk_mib: Annotated[int, Field(ge=64, le=16_777_216), WHOLE] = 2048


class AutoLifecycle(Asked):
    """Changes that happen by themselves."""

    idle_seconds: Annotated[
        int,
        Field(ge=1, le=315_360_000, description="Without a request, a running `exec` or any output of a command."),
        WHOLE,
    ] = 21_600
    on_idle: Annotated[OnIdle, Field(description="What then happens to it.")] = OnIdle.SUSPEND
    max_lifetime_seconds: (
        Annotated[int, Field(ge=1, le=315_360_000, description="After these it is deleted; see `extend`."), WHOLE]
        | None
    ) = None
    wake_on_request: Annotated[
        bool, Field(description="A command, file or stream that needs it awake wakes it and is then served.")
    ] = False

    def to_core(self) -> CoreAutoLifecycle:
        return CoreAutoLifecycle(
            idle_seconds=self.idle_seconds,
            on_idle=self.on_idle,
            max_lifetime_seconds=self.max_lifetime_seconds,
            wake_on_request=self.wake_on_request,
        )


class SandboxCreate(Asked):
    """Asks for a sandbox; `template` is all that is required."""

    template: TemplateReference
    runtime: Runtime | None = None
    resources: Resources = Resources()
    env: Env = Field(default={})
    metadata: Metadata = Field(default={})
    network_policy: NetworkPolicyV1 | None = None
    egress_profile: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-z0-9][a-z0-9._-]*$")] | None = None
    auto_lifecycle: AutoLifecycle = AutoLifecycle()
    secure_ports: bool = True

    def to_core(self) -> SandboxSpec:
        return SandboxSpec(
            template=self.template,
            runtime=self.runtime,
            resources=CoreResources(
                vcpus=self.resources.vcpus, memory_mib=self.resources.memory_mib, disk_mib=self.resources.disk_mib
            ),
            env=self.env,
            metadata=self.metadata,
            auto_lifecycle=self.auto_lifecycle.to_core(),
            secure_ports=self.secure_ports,
        )


class SandboxUpdate(Asked):
    """Changes a sandbox; what is left out stays."""

    model_config = at_least_one("metadata", "auto_lifecycle")

    metadata: Metadata = Field(default_factory=dict)
    auto_lifecycle: AutoLifecycle = Field(default_factory=AutoLifecycle)

    @model_validator(mode="after")
    def _changes_something(self) -> "SandboxUpdate":
        if not self.model_fields_set:
            raise ValueError("give metadata or auto_lifecycle")
        return self

    @property
    def new_metadata(self) -> dict[str, str] | None:
        """What replaces the metadata; None leaves it."""
        return self.metadata if "metadata" in self.model_fields_set else None

    @property
    def new_lifecycle(self) -> CoreAutoLifecycle | None:
        """What replaces the automatic lifecycle; None leaves it."""
        return self.auto_lifecycle.to_core() if "auto_lifecycle" in self.model_fields_set else None


class Extension(Asked):
    """Moves the end of a sandbox's life."""

    seconds: Annotated[int, Field(ge=1, le=315_360_000), WHOLE]


class CodeRequest(Asked):
    """Asks a kernel to run code."""

    language: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9+#-]+$")] = "python"
    code: Annotated[str, Field(min_length=1, max_length=1_048_576)]
    context_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None


class PortUrlRequest(Asked):
    """Asks for a signed URL of a port."""

    expires_seconds: Annotated[int, Field(ge=1, le=604_800), WHOLE] = 3600


class PolicyQuestion(Asked):
    """Asks what would happen to a request."""

    url: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^https?://[^\x00\s]+$")]
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET"


class TemplateName(Shown):
    """What a sandbox was made from."""

    name: str
    digest: str


class ShownResources(Shown):
    """What a machine may use."""

    vcpus: int
    memory_mib: int
    disk_mib: int


class ShownAutoLifecycle(Shown):
    """Changes that happen by themselves."""

    idle_seconds: int
    on_idle: Literal["pause", "suspend", "delete", "none"]
    max_lifetime_seconds: int | None
    wake_on_request: bool


class Sandbox(Shown):
    """A sandbox; null where there is nothing to say."""

    id: str
    state: ShownState
    template: TemplateName
    runtime: str
    resources: ShownResources
    env_keys: list[str] = Field(description="Names only: values may be secrets.")
    metadata: dict[str, str]
    network_policy: dict[str, object]
    egress_profile: str | None
    auto_lifecycle: ShownAutoLifecycle
    secure_ports: bool
    node_id: str | None
    generation: int
    operation_id: str | None = Field(description="The unfinished operation that holds it.")
    reason: str | None = Field(description="Why it failed or came down unasked.")
    created_at: datetime
    started_at: datetime | None
    last_active_at: datetime
    expires_at: datetime | None
    ports_domain: str | None
    restorable: bool = Field(description="Whether `recover` can bring it back if it fails: from `snapshot_id`.")
    snapshot_id: str | None = Field(description="Its last durable state.")


class SelectedSandbox(Shown):
    """The selected fields of a sandbox: all of them unless `fields` was given."""

    id: str | None = None
    state: ShownState | None = None


class SandboxPage(Shown):
    """A page of sandboxes."""

    items: list[SelectedSandbox]
    next_cursor: str | None


class SandboxAccepted(Shown):
    """A new sandbox, and the operation that starts it."""

    sandbox: Sandbox
    operation: Operation


class SandboxFields(Query):
    """Selects fields of a sandbox."""

    fields: Annotated[
        str | None,
        Field(
            max_length=1024,
            pattern=selection_of(Sandbox),
            description="Names of the fields to answer with, divided by commas; default: all.",
            examples=["id,state"],
        ),
    ] = None

    @property
    def selected(self) -> frozenset[str] | None:
        return frozenset(self.fields.split(",")) if self.fields else None


class SandboxListQuery(SandboxFields):
    """Chooses sandboxes.

    `metadata.KEY=VALUE`, any number of times, chooses by metadata.
    """

    limit: Limit = 100
    cursor: Cursor = None
    state: ShownState | None = None
    template: TemplateReference | None = None
    runtime: Annotated[str, Field(max_length=64, pattern=r"^[a-z-]+$")] | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None
    order: Annotated[
        Literal["asc", "desc"], Field(description="By time of creation; `desc` shows the newest first.")
    ] = "desc"
    _metadata: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def metadata(self) -> dict[str, str]:
        """What the parameters `metadata.KEY` ask for: they have no fixed names, so they are no fields."""
        return self._metadata

    @classmethod
    def from_pairs(cls, pairs: dict[str, str]) -> Self:
        """Take the parameters `metadata.KEY` out of the others."""
        mark = "metadata."
        chosen = {name.removeprefix(mark): value for name, value in pairs.items() if name.startswith(mark)}
        for key, value in chosen.items():
            if not 0 < len(key) <= 128 or len(value) > 1024:
                raise InvalidRequest(
                    "metadata: a key has 1 to 128 characters, a value at most 1,024", field=f"metadata.{key[:128]}"
                )
        query = super().from_pairs({name: value for name, value in pairs.items() if not name.startswith(mark)})
        query._metadata = chosen
        return query


class EventQuery(Query):
    """Chooses events of a sandbox."""

    limit: Limit = 100
    cursor: Cursor = None
    after: Annotated[int, Field(ge=0, le=2**62, description="The last `seq` that is known."), WHOLE] | None = None


class SandboxEvent(Shown):
    """One entry of a sandbox's timeline."""

    seq: int
    type: str
    operation_id: str | None
    data: dict[str, object]
    at: datetime


class SandboxEventPage(Shown):
    """A page of a timeline, oldest first."""

    items: list[SandboxEvent]
    next_cursor: str | None


class Metrics(Shown):
    """What a machine uses now; null where its runtime cannot tell."""

    sandbox_id: str
    generation: int
    at: datetime
    now: dict[str, float]
    history: list[dict[str, float]] = Field(description="Older samples, oldest first; empty where none are kept.")
