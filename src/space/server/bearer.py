"""The secret in `Authorization`."""

from space.core.errors import Unauthenticated
from space.server.request import ApiRequest

MAX_SECRET = 512


def bearer(request: ApiRequest) -> str:
    """Return the bearer token of a request; raises `Unauthenticated`."""
    value = request.header(b"authorization")
    if value is None:
        raise Unauthenticated("this needs a token: send `Authorization: Bearer …`")
    scheme, _, secret = value.partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated("the Authorization header must be `Bearer` and a token")
    if len(secret) > MAX_SECRET or not secret.isascii():
        raise Unauthenticated("the token is unknown, expired or revoked")
    return secret
