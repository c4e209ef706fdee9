"""Logins of people."""

from starlette.responses import Response

from space.core.errors import FailedPrecondition, LimitExceeded, Unauthenticated
from space.server.answers import Json
from space.server.auth import examples, render
from space.server.auth import schemas as forms
from space.server.documentation import Answer, Document
from space.server.endpoint import Routes, Rule
from space.server.request import ApiRequest
from space.server.v1.schemas.shared import AT, LATER, TOKEN

routes = Routes("sessions")
NO_LOGIN = FailedPrecondition("this is a token, not a login; revoke it at /auth/v1/tokens")


@routes.add(
    "POST",
    "/auth/v1/sessions",
    rule=Rule(is_public=True, takes_key=False),
    document=Document(
        id="createLoginSession",
        summary="Log in",
        tag=routes.tag,
        is_published=True,
        description="Failures are limited per address and per account; unknown and wrong are answered alike.",
        requests={"login": {"email": "admin@example.com", "password": "correct horse battery staple"}},
        answers={
            201: Answer(
                description="A session; its token is shown once.",
                model=forms.LoginCreated,
                examples={"created": {"token": examples.SECRET, "expires_at": LATER, "user": examples.ADMIN}},
            )
        },
        raises=(
            Unauthenticated("the email or the password is wrong"),
            LimitExceeded("too many failed logins; wait a minute", quota="failed_logins"),
        ),
    ),
)
async def create_login_session(request: ApiRequest, body: forms.Login) -> Response:
    """Exchange a password for a session."""
    login = await request.services.accounts.login(
        body.email, body.password, address=request.address, request_id=request.request_id
    )
    content = {"token": login.secret, "expires_at": login.expires_at, "user": render.login_user(login.user)}
    return Json(content, 201, {"Cache-Control": "no-store"})


@routes.add(
    "GET",
    "/auth/v1/sessions/current",
    rule=Rule(),
    document=Document(
        id="getLoginSession",
        summary="Show the session that asks",
        tag=routes.tag,
        is_published=True,
        answers={
            200: Answer(
                description="The session.",
                model=forms.LoginShown,
                examples={"admin": {"id": TOKEN, "created_at": AT, "expires_at": LATER, "user": examples.ADMIN}},
            )
        },
        raises=(NO_LOGIN,),
    ),
)
async def get_login_session(request: ApiRequest) -> Response:
    """Show who is logged in."""
    user, token = await request.services.accounts.current(request.principal)
    return Json(
        {
            "id": token.id,
            "expires_at": token.expires_at,
            "created_at": token.created_at,
            "user": render.login_user(user),
        }
    )


@routes.add(
    "DELETE",
    "/auth/v1/sessions/current",
    rule=Rule(),
    document=Document(
        id="deleteLoginSession",
        summary="Log out",
        tag=routes.tag,
        is_published=True,
        answers={204: Answer(description="The session has ended.")},
        raises=(NO_LOGIN,),
    ),
)
async def delete_login_session(request: ApiRequest) -> Response:
    """End the session that asks."""
    await request.services.accounts.logout(request.call)
    return Response(status_code=204)
