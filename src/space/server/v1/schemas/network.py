"""NetworkPolicyV1, typed in full; until the gateway is there only the policy that denies everything is accepted."""

from typing import Annotated, Literal

from pydantic import Field

from space.server.schemas import NO_NUL, WHOLE, Asked, Text, mapping

Domain = Annotated[str, Field(max_length=253, pattern=r"^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$")]
Port = Annotated[int, Field(ge=1, le=65535), WHOLE]
Ports = Annotated[list[Port], Field(min_length=1, max_length=64)]


class Destination(Asked):
    """Where a rule applies: exactly one of `domain`, `ip` and `cidr`."""

    domain: Domain | None = None
    ip: Annotated[str, Field(max_length=45)] | None = None
    cidr: Annotated[str, Field(max_length=49)] | None = None
    ports: Ports | None = None


class TlsInterception(Asked):
    """Whether TLS is opened for inspection and injection."""

    enabled: bool = False
    exempt: Annotated[list[Domain], Field(max_length=256)] = Field(default=[])


class CredentialRule(Asked):
    """Adds a credential to requests to one host."""

    credential: Annotated[str, Field(pattern=r"^crd[0-9a-v]{25}[048cgkos]$")]
    host: Domain
    port: Port = 443
    path_prefix: Annotated[str, Field(max_length=1024, pattern=r"^/[^\x00]*$")] | None = None
    methods: Annotated[list[Literal["GET", "POST"]], Field(max_length=2)] = Field(default=["GET", "POST"])
    headers: Annotated[
        dict[Text, Text], Field(max_length=16), mapping({"pattern": NO_NUL}, {"pattern": NO_NUL}, maxProperties=16)
    ] = Field(default={})


class NetworkLimits(Asked):
    """Bounds on what leaves; null is no limit."""

    connections: Annotated[int, Field(ge=1, le=65536), WHOLE] = 512
    egress_mib: Annotated[int, Field(ge=1), WHOLE] | None = None


class NetworkPolicyV1(Asked):
    """What may leave a sandbox."""

    version: Annotated[int, Field(ge=1, le=1), WHOLE] = 1
    default_action: Literal["allow", "deny"] = "deny"
    allow: Annotated[list[Destination], Field(max_length=1000)] = Field(default=[])
    deny: Annotated[list[Destination], Field(max_length=1000)] = Field(default=[])
    tls_interception: TlsInterception = TlsInterception()
    credential_rules: Annotated[list[CredentialRule], Field(max_length=64)] = Field(default=[])
    limits: NetworkLimits = NetworkLimits()

    @property
    def denies_everything(self) -> bool:
        """Whether it asks for nothing beyond what holds without a gateway."""
        return (
            self.default_action == "deny"
            and not self.allow
            and not self.credential_rules
            and not self.tls_interception.enabled
        )
