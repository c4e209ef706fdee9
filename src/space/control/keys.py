"""The keys of projects, with which the chunks of their snapshots are encrypted."""

import os

from space.core.ids import ProjectId
from space.core.ports import Sealer
from space.core.store import Store

KEY_BYTES = 32


class ProjectKeys:
    """Makes and opens keys; an opened one stays in this process's memory and goes nowhere but into a node's orders."""

    def __init__(self, store: Store, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer
        self._opened: dict[ProjectId, bytes] = {}

    async def get(self, project_id: ProjectId) -> bytes:
        """Return the project's key; its first use makes it.

        Raises `NotFound` for an unknown project, `Unavailable` if this installation cannot open it.
        """
        key = self._opened.get(project_id)
        if key is None:
            key = self._opened[project_id] = await self._open(project_id)
        return key

    async def _open(self, project_id: ProjectId) -> bytes:
        context = f"project-key:{project_id}"
        sealed = await self._store.accounts.project_key(project_id)
        if sealed is None:
            made = self._sealer.seal(os.urandom(KEY_BYTES), context=context)
            sealed = await self._store.accounts.project_key(project_id, otherwise=made)
        if sealed is None:
            raise AssertionError("a key was just offered")
        return self._sealer.open(sealed, context=context)
