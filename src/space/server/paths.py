"""Which endpoint answers a path: a tree of segments.

Starlette tries its routes one after the other with a regular expression each, and names in `Allow` only the methods
of the route that matched first.  With some seventy routes a tree costs less, and knows all methods of a path.
"""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from space.core.errors import MethodNotAllowed, NotFound


class Routed(Protocol):
    """What the tree needs to know of an endpoint."""

    path: str
    method: str
    is_stream: bool


T = TypeVar("T", bound=Routed)


class _Branch(Generic[T]):
    __slots__ = ("endpoints", "parameter", "segments")

    def __init__(self) -> None:
        self.segments: dict[str, _Branch[T]] = {}
        self.parameter: _Branch[T] | None = None
        self.endpoints: dict[str, T] = {}


class Paths(Generic[T]):
    """Finds endpoints; the values of `{…}` come in the order of the path."""

    def __init__(self, endpoints: Iterable[T]) -> None:
        self._root: _Branch[T] = _Branch()
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: T) -> None:
        branch = self._root
        for segment in endpoint.path.split("/")[1:]:
            if segment.startswith("{"):
                if branch.parameter is None:
                    branch.parameter = _Branch()
                branch = branch.parameter
            else:
                branch = branch.segments.setdefault(segment, _Branch())
        if endpoint.method in branch.endpoints:
            raise ValueError(f"two endpoints answer {endpoint.method} {endpoint.path}")
        branch.endpoints[endpoint.method] = endpoint

    def find(self, method: str, path: str) -> tuple[T, list[str]]:
        """Return the endpoint and the values in its path.

        Raises:
            NotFound: no endpoint has this path.
            MethodNotAllowed: the path exists; `details.allowed` lists its methods.
        """
        branch = self._root
        values: list[str] = []
        for segment in path.split("/")[1:]:
            known = branch.segments.get(segment)
            if known is None:
                if branch.parameter is None or not segment:
                    raise NotFound("there is nothing at this path; /openapi.json lists what there is")
                values.append(segment)
                known = branch.parameter
            branch = known
        endpoint = branch.endpoints.get(method)
        if endpoint is None and method == "HEAD":
            endpoint = branch.endpoints.get("GET")
            if endpoint is not None and endpoint.is_stream:
                endpoint = None
        if endpoint is not None:
            return endpoint, values
        if not branch.endpoints:
            raise NotFound("there is nothing at this path; /openapi.json lists what there is")
        allowed = sorted(branch.endpoints)
        raise MethodNotAllowed(f"{_shown(method)} is not possible here; use {' or '.join(allowed)}", allowed=allowed)


def _shown(method: str) -> str:
    return method if method.isalpha() and len(method) <= 16 else "this method"
