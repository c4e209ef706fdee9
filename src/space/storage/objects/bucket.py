"""`core.ports.ObjectStore` over any store that obstore knows.

obstore's blocking calls are used, in threads of our own: its asynchronous ones finish on threads of its runtime, which
nothing stops, and with Python 3.11 one exit in ten ended in an abort (obstore 0.12.1, PyO3/pyo3-async-runtimes#40).
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore

from space.core.errors import NotFound, PayloadTooLarge, SpaceError, Unavailable
from space.core.objects import MAX_BYTES
from space.core.ports import ObjectInfo

_THREADS = 16
_LIST_PAGE = 1000
_STATUS = re.compile(r"status code:? (\d{3})")

Result = TypeVar("Result")


class BucketObjects:
    """Objects in one bucket, below a prefix that `store` has.  `name` is what errors call it; it holds no secret."""

    def __init__(self, store: ObjectStore, *, name: str) -> None:
        self._store = store
        self._name = name
        self._threads = ThreadPoolExecutor(_THREADS, "objects")

    async def get(self, key: str, *, most: int = MAX_BYTES) -> bytes:
        return await self._in_thread(self._get, key, most)

    async def put(self, key: str, data: bytes) -> None:
        await self._in_thread(self._put, key, data)

    async def head(self, key: str) -> ObjectInfo | None:
        try:
            return await self._in_thread(self._head, key)
        except NotFound:
            return None

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        stream = iter(obstore.list(self._store, prefix, chunk_size=_LIST_PAGE))
        while (page := await self._in_thread(self._next_page, stream)) is not None:
            for found in page:
                yield ObjectInfo(key=found["path"], size=found["size"], modified_at=found["last_modified"])

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            await self._in_thread(self._delete, keys)

    async def _in_thread(self, call: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _get(self, key: str, most: int) -> bytes:
        with self._failures(key):
            found = obstore.get(self._store, key)
            if found.meta["size"] > most:
                raise PayloadTooLarge(f"an object in {self._name} is larger than it was written: {key}", limit=most)
            return bytes(found.bytes())

    def _put(self, key: str, data: bytes) -> None:
        with self._failures():
            obstore.put(self._store, key, data, use_multipart=False)

    def _head(self, key: str) -> ObjectInfo:
        with self._failures(key):
            found = obstore.head(self._store, key)
            return ObjectInfo(key=key, size=found["size"], modified_at=found["last_modified"])

    def _next_page(self, stream: "Iterator[Sequence[obstore.ObjectMeta]]") -> "Sequence[obstore.ObjectMeta] | None":
        with self._failures():
            return next(stream, None)

    def _delete(self, keys: Sequence[str]) -> None:
        with self._failures():
            obstore.delete(self._store, [*keys])

    @contextmanager
    def _failures(self, key: str | None = None) -> Iterator[None]:
        """Turn obstore's errors into ours; only with `key` may something be missing but the bucket.

        Theirs hold requests and answers, so they are not passed on.
        """
        try:
            yield
        except SpaceError:
            raise
        except (NotFoundError, FileNotFoundError) as error:
            if key is None or "NoSuchBucket" in str(error):
                raise Unavailable(f"the object store {self._name} does not exist; make the bucket") from None
            raise NotFound(f"there is no object {key} in {self._name}") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError):
            raise Unavailable(
                f"the object store {self._name} refuses access; check its credentials and permissions"
            ) from None
        except (BaseError, OSError) as error:
            if "NoSuchBucket" in str(error):
                raise Unavailable(f"the object store {self._name} does not exist; make the bucket") from None
            status = _STATUS.search(str(error).partition("\n")[0])
            what = f"answered {status[1]}" if status else "does not answer"
            raise Unavailable(f"the object store {self._name} {what}; try again later") from None
