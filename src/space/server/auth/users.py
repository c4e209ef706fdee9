"""People, for administrators."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.control.idempotency import Linked
from space.core.account import Scope
from space.core.errors import AlreadyExists, Conflict, FailedPrecondition, NotFound
from space.server.answers import Json
from space.server.auth import examples, render
from space.server.auth import schemas as forms
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1.examples import page
from space.server.v1.schemas.shared import USER, UserIdPath

routes = Routes("users")
ADMIN = Rule(right=Scope.ADMIN)
NO_USER = NotFound("there is no such user")
LAST = FailedPrecondition("this is the last administrator")
MADE = examples.USER_SHOWN | {"role": "member", "password": "made-up-Zm9yIGV4YW1wbGU"}


async def _replay(request: ApiRequest, linked: Linked, arguments: Mapping[str, Any]) -> Response:
    raise Conflict("the password of this key was shown once; reset it with a new key", user_id=linked.target_id)


@routes.add(
    "POST",
    "/auth/v1/users",
    rule=Rule(right=Scope.ADMIN, keeps_body=False, replay=_replay),
    document=Document(
        id="createUser",
        summary="Create a user",
        tag=routes.tag,
        requests={
            "member": {"email": "ada@example.com", "role": "member"},
            "viewer": {"email": "lin@example.com", "role": "viewer", "password": "correct horse battery staple"},
        },
        answers={
            201: Answer(
                description="The user; a password that was made up is shown once.",
                model=forms.UserWithPassword,
                examples={"made_up_password": MADE, "given_password": MADE | {"password": None}},
            )
        },
        raises=(
            AlreadyExists("there is a user ada@example.com", field="email"),
            Conflict("the password of this key was shown once; reset it with a new key", user_id=USER),
        ),
    ),
)
async def create_user(request: ApiRequest, body: forms.UserCreate) -> Response:
    """Make a user."""
    user, password = await request.services.accounts.create_user(
        request.call, email=body.email, role=body.role, password=body.password
    )
    headers = {"Cache-Control": "no-store", "Location": f"/auth/v1/users/{user.id}"}
    return Json(render.user(user) | {"password": password}, 201, headers)


@routes.add(
    "GET",
    "/auth/v1/users",
    rule=ADMIN,
    document=Document(
        id="listUsers",
        summary="List users",
        tag=routes.tag,
        answers={
            200: Answer(
                description="A page of users.", model=forms.UserPage, examples={"one": page(examples.USER_SHOWN)}
            )
        },
    ),
)
async def list_users(request: ApiRequest, query: Annotated[forms.PageQuery, Query()]) -> Response:
    """List users."""
    found = await request.services.accounts.list_users(request.principal, limit=query.limit, cursor=query.cursor)
    return Json({"items": [render.user(row) for row in found.items], "next_cursor": found.next_cursor})


@routes.add(
    "GET",
    "/auth/v1/users/{user_id}",
    rule=ADMIN,
    document=Document(
        id="getUser",
        summary="Get a user",
        tag=routes.tag,
        answers={200: Answer(description="The user.", model=forms.User, examples={"admin": examples.USER_SHOWN})},
        raises=(NO_USER,),
    ),
)
async def get_user(request: ApiRequest, user_id: UserIdPath) -> Response:
    """Show one user."""
    return Json(render.user(await request.services.accounts.get_user(request.principal, user_id)))


@routes.add(
    "PATCH",
    "/auth/v1/users/{user_id}",
    rule=ADMIN,
    document=Document(
        id="updateUser",
        summary="Set a user's role, or disable them",
        tag=routes.tag,
        description="Disabling ends their sessions.",
        requests={"promote": {"role": "admin"}, "disable": {"disabled": True}},
        answers={200: Answer(description="The user.", model=forms.User, examples={"changed": examples.USER_SHOWN})},
        raises=(NO_USER, LAST),
    ),
)
async def update_user(request: ApiRequest, user_id: UserIdPath, body: forms.UserUpdate) -> Response:
    """Change a user."""
    user = await request.services.accounts.update_user(
        request.call, user_id, role=body.new_role, is_disabled=body.is_disabled
    )
    return Json(render.user(user))


@routes.add(
    "POST",
    "/auth/v1/users/{user_id}/reset-password",
    rule=Rule(right=Scope.ADMIN, keeps_body=False, replay=_replay),
    document=Document(
        id="resetPassword",
        summary="Reset a user's password",
        tag=routes.tag,
        description="Ends their sessions.",
        requests={"made_up": {}, "given": {"password": "correct horse battery staple"}},
        answers={
            200: Answer(
                description="The user; a password that was made up is shown once.",
                model=forms.UserWithPassword,
                examples={"made_up_password": MADE},
            )
        },
        raises=(NO_USER,),
    ),
)
async def reset_password(request: ApiRequest, user_id: UserIdPath, body: forms.PasswordReset) -> Response:
    """Set a password."""
    user, password = await request.services.accounts.reset_password(request.call, user_id, password=body.password)
    return Json(render.user(user) | {"password": password}, headers={"Cache-Control": "no-store"})
