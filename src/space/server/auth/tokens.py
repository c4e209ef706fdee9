"""Tokens for programs."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.control.idempotency import Linked
from space.control.tokens import TokenRequest
from space.core.errors import Conflict, NotFound, PermissionDenied
from space.server.answers import Json
from space.server.auth import examples, render
from space.server.auth import schemas as forms
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1.examples import page
from space.server.v1.schemas.shared import TOKEN, TokenIdPath

routes = Routes("tokens")


async def _replay(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    raise Conflict(
        "the token of this key was made and shown once; revoke it and use a new key", token_id=linked.target_id
    )


@routes.add(
    "POST",
    "/auth/v1/tokens",
    rule=Rule(keeps_body=False, replay=_replay),
    document=Document(
        id="createToken",
        summary="Create a token",
        tag=routes.tag,
        description="With no more rights than one has oneself. The secret is shown once and kept as its hash.",
        requests={
            "ci": {"name": "ci", "scopes": ["sandboxes:read", "sandboxes:write", "commands:run"]},
            "one_template": {"name": "lab", "scopes": ["sandboxes:read", "sandboxes:write"], "templates": ["base"]},
            "read_only": {"name": "dashboard", "preset": "read-only", "expires_at": "2027-12-01T00:00:00Z"},
            "e2b": {"name": "sdk", "kind": "e2b", "scopes": ["sandboxes:write", "commands:run"]},
        },
        answers={
            201: Answer(
                description="The token, with its secret.",
                model=forms.TokenCreated,
                examples={"created": examples.TOKEN_SHOWN | {"token": examples.SECRET, "last_used_at": None}},
            )
        },
        raises=(
            PermissionDenied("this needs the scope admin; ask for a token that has it", scope="admin"),
            Conflict("the token of this key was made and shown once; revoke it and use a new key", token_id=TOKEN),
        ),
    ),
)
async def create_token(request: ApiRequest, body: forms.TokenCreate) -> Response:
    """Make a token."""
    wanted = TokenRequest(
        name=body.name,
        scopes=body.rights,
        kind=body.token_kind,
        expires_at=body.expires_at,
        project_id=body.project,
        templates=frozenset(body.templates) if body.templates is not None else None,
    )
    token, secret = await request.services.tokens.create(request.call, wanted)
    headers = {"Cache-Control": "no-store", "Location": f"/auth/v1/tokens/{token.id}"}
    return Json(render.token(token) | {"token": secret}, 201, headers)


@routes.add(
    "GET",
    "/auth/v1/tokens",
    rule=Rule(),
    document=Document(
        id="listTokens",
        summary="List tokens",
        tag=routes.tag,
        description="Those of one's own project; without their secrets.",
        answers={
            200: Answer(
                description="A page of tokens.",
                model=forms.TokenPage,
                examples={"one": page(examples.TOKEN_SHOWN), "none": page()},
            )
        },
    ),
)
async def list_tokens(request: ApiRequest, query: Annotated[forms.PageQuery, Query()]) -> Response:
    """List tokens."""
    found = await request.services.tokens.list(request.principal, limit=query.limit, cursor=query.cursor)
    return Json({"items": [render.token(row) for row in found.items], "next_cursor": found.next_cursor})


@routes.add(
    "GET",
    "/auth/v1/tokens/{token_id}",
    rule=Rule(),
    document=Document(
        id="getToken",
        summary="Get a token",
        tag=routes.tag,
        answers={200: Answer(description="The token.", model=forms.Token, examples={"service": examples.TOKEN_SHOWN})},
        raises=(NotFound("there is no such token"),),
    ),
)
async def get_token(request: ApiRequest, token_id: TokenIdPath) -> Response:
    """Show one token."""
    return Json(render.token(await request.services.tokens.get(request.principal, token_id)))


@routes.add(
    "DELETE",
    "/auth/v1/tokens/{token_id}",
    rule=Rule(),
    document=Document(
        id="revokeToken",
        summary="Revoke a token",
        tag=routes.tag,
        description="It stops working within five seconds, open streams included. Revoking twice succeeds.",
        answers={204: Answer(description="It is revoked.")},
        raises=(NotFound("there is no such token"),),
    ),
)
async def revoke_token(request: ApiRequest, token_id: TokenIdPath) -> Response:
    """Revoke a token."""
    await request.services.tokens.revoke(request.call, token_id)
    return Response(status_code=204)
