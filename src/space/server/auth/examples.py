"""Values that the examples of `/auth/v1` are made of."""

from typing import Any

from space.server.v1.schemas.shared import AT, LATER, PROJECT, TOKEN, USER

ADMIN: dict[str, Any] = {"id": USER, "email": "admin@example.com", "role": "admin"}
USER_SHOWN: dict[str, Any] = ADMIN | {"disabled": False, "created_at": AT}
TOKEN_SHOWN: dict[str, Any] = {
    "id": TOKEN,
    "name": "ci",
    "kind": "service",
    "prefix": "spt_Zm9y",
    "project": PROJECT,
    "user_id": None,
    "scopes": ["commands:run", "sandboxes:read", "sandboxes:write"],
    "templates": None,
    "created_by": USER,
    "created_at": AT,
    "expires_at": "2027-12-01T00:00:00.000000Z",
    "revoked_at": None,
    "last_used_at": LATER,
}
SECRET = "spt_Zm9yIGV4YW1wbGUgb25seSwgbm90IGEgc2VjcmV0"  # an example, no token
