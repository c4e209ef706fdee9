"""What the contract names and this version does not do yet: the routes exist and say so.

Each answers a typed `unsupported` that names the feature, after the caller was let in and the request was found
valid, so that a client can tell "not here" from "not there".
"""

from starlette.responses import Response

from space.core.account import Scope
from space.core.errors import Unsupported
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1.schemas import sandboxes as forms
from space.server.v1.schemas.network import NetworkPolicyV1
from space.server.v1.schemas.operations import Operation
from space.server.v1.schemas.shared import SandboxIdPath

routes = Routes("not yet supported")
ONE = "/v1/sandboxes/{sandbox_id}"


def _document(id: str, summary: str, feature: str, **requests: object) -> Document:
    return Document(
        id=id,
        summary=summary,
        tag=routes.tag,
        description="Answers `unsupported` in this version.",
        requests=requests,
        answers={202: Answer(description="Once it is supported: the operation.", model=Operation)},
        raises=(_refusal(feature),),
    )


def _refusal(feature: str) -> Unsupported:
    return Unsupported(f"{feature} is not supported by this version", feature=feature)


async def _refuse(request: ApiRequest, sandbox_id: str, feature: str) -> Response:
    await request.services.sandboxes.get(request.principal, sandbox_id)
    raise _refusal(feature)


@routes.add(
    "POST",
    ONE + "/code",
    rule=Rule(right=Scope.COMMANDS_RUN),
    document=_document("runCode", "Run code in a kernel", "code", python={"language": "python", "code": "6*7"}),
)
async def run_code(request: ApiRequest, sandbox_id: SandboxIdPath, body: forms.CodeRequest) -> Response:
    """Run code with rich results."""
    return await _refuse(request, sandbox_id, "code")


@routes.add(
    "PUT",
    ONE + "/network-policy",
    rule=Rule(right=Scope.NETWORK_WRITE),
    document=_document(
        "setNetworkPolicy",
        "Set what may leave a sandbox",
        "network_policy",
        allow_one={"version": 1, "default_action": "deny", "allow": [{"domain": "packages.example.org"}]},
    ),
)
async def set_network_policy(request: ApiRequest, sandbox_id: SandboxIdPath, body: NetworkPolicyV1) -> Response:
    """Replace a sandbox's policy."""
    return await _refuse(request, sandbox_id, "network_policy")


@routes.add(
    "GET",
    ONE + "/network-policy",
    rule=Rule(right=Scope.SANDBOXES_READ),
    document=_document("getNetworkPolicy", "Show the policy in effect", "network_policy"),
)
async def get_network_policy(request: ApiRequest, sandbox_id: SandboxIdPath) -> Response:
    """Show each rule and where it comes from."""
    return await _refuse(request, sandbox_id, "network_policy")


@routes.add(
    "POST",
    ONE + "/network-policy/explain",
    rule=Rule(right=Scope.SANDBOXES_READ, is_question=True),
    document=_document(
        "explainNetworkPolicy",
        "Say what would happen to a request",
        "network_policy",
        get={"url": "https://packages.example.org/simple/", "method": "GET"},
    ),
)
async def explain_network_policy(
    request: ApiRequest, sandbox_id: SandboxIdPath, body: forms.PolicyQuestion
) -> Response:
    """Decide without sending."""
    return await _refuse(request, sandbox_id, "network_policy")
