"""Loading and unloading adapters of tenants, as administrators ask for it.

    POST ──► path checked ──► the engine reads and checks the files ──► a row: keys may use it
    DELETE ──► no row: keys may not ──► every engine forgets it, running requests end

The row is the truth. Engines read an adapter again when a request needs it and they do not have it,
so there is nothing to do when one is started again, or when there are several.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from uuid import UUID, uuid4

from engine.errors import EngineDead, QueueFull
from engine.messages import AdapterRef
from gateway.admission.model import Model
from gateway.admission.served_models import ServedModels
from gateway.errors import Conflict, InvalidRequestError
from tenants.errors import ObjectExists, ObjectNotFound
from tenants.names import normalize_name
from tenants.store import Store
from tenants.types import Adapter

logger = logging.getLogger(__name__)

_FILES = ("adapter_config.json", "adapter_model.safetensors")


class Adapters:
    """All adapters below ``models.adapters_dir``. One per gateway worker."""

    def __init__(self, models: ServedModels, store: Store) -> None:
        self._models = models
        self._store = store
        self._deleted: asyncio.Queue[UUID] = asyncio.Queue()

    async def load(
        self, tenant_id: UUID, name: str, path: str, model: str | None = None
    ) -> Adapter:
        """Load an adapter: the tenant's keys may use ``name`` from now on. If this raises, nothing
        is left behind.

        path: a folder, relative to ``models.adapters_dir``. model: which one it changes; None if
        there is one only that takes adapters. Raises ``InvalidRequestError``,
        ``AdapterLoadError`` (what does not fit the model), ``Conflict``, ``ObjectExists``,
        ``ObjectNotFound``, ``EngineDead``.
        """
        base = self._base(model)
        root = base.adapters_dir
        assert root is not None
        tenant = await self._store.get_tenant(tenant_id)
        name = normalize_name("name", name)
        if self._models.is_taken(name):
            raise Conflict(f"{name!r} is a model of the server; choose another name.")
        if any(one.name == name for one in await self._store.list_adapters(tenant.id)):
            raise ObjectExists("adapter", name)
        folder = await asyncio.to_thread(_folder, root, path)
        adapter_id = uuid4()
        try:
            read = await base.engine.adapters.load(
                AdapterRef(name=adapter_id.hex, path=str(root / folder))
            )
            return await self._store.create_adapter(
                tenant.id,
                adapter_id=adapter_id,
                name=name,
                parent=base.name,
                path=str(folder),
                base_model=read.base_model,
                rank=read.rank,
                digest=read.digest,
            )
        except BaseException:
            self.on_deleted(adapter_id)
            raise

    def _base(self, name: str | None) -> Model:
        """The model to load an adapter for."""
        able = [model for model in self._models.all if model.adapters_dir is not None]
        if not able:
            raise InvalidRequestError(
                "This server has no adapters: set engine.enable_lora and models.adapters_dir.",
                code="adapters_disabled",
            )
        found = [model for model in able if name in (None, model.name)]
        if len(found) != 1:
            names = ", ".join(model.name for model in able)
            raise InvalidRequestError(
                f"Must be the model that the adapter changes, one of {names}.", param="model"
            )
        return found[0]

    async def unload(self, tenant_id: UUID, named: str) -> Adapter:
        """Unload an adapter, given its name or id; its running requests go on to their end. Raises
        ``ObjectNotFound``."""
        tenant = await self._store.get_tenant(tenant_id)
        for adapter in await self._store.list_adapters(tenant.id):
            if named in (adapter.name, str(adapter.id)):
                await self._store.delete_adapter(tenant.id, adapter.id)
                self.on_deleted(adapter.id)
                return adapter
        raise ObjectNotFound("adapter", named)

    def on_deleted(self, adapter_id: UUID) -> None:
        """Note that some worker deleted the adapter, so that the engine forgets it, too.
        Harmless if repeated."""
        self._deleted.put_nowait(adapter_id)

    async def run(self) -> None:
        """Tell the engine what was deleted, until cancelled."""
        while True:
            adapter_id = await self._deleted.get()
            for model in self._models.all:
                if model.adapters_dir is None:
                    continue
                try:
                    await model.engine.adapters.unload(adapter_id.hex)
                except EngineDead:
                    pass  # the next one knows of nothing
                except QueueFull as error:
                    logger.warning("an engine does not hear of a deleted adapter: %s", error)


def _folder(root: Path, path: str) -> Path:
    """``path`` relative to ``root``, with links resolved. Raises ``InvalidRequestError``, which
    reveals nothing about folders outside of ``root``."""
    root = root.resolve()
    try:
        folder = (root / path).resolve()
        is_inside = folder != root and folder.is_relative_to(root)
        is_there = is_inside and folder.is_dir()
    except (OSError, ValueError):
        raise _bad_path("Not a path.") from None
    if not is_inside:
        raise _bad_path("Must be a folder below models.adapters_dir.")
    if not is_there:
        raise _bad_path(f"There is no folder {path!r} in models.adapters_dir.")
    for name in _FILES:
        if not (folder / name).resolve().is_relative_to(root):
            raise _bad_path(f"{name} is a link that leads out of models.adapters_dir.")
    return folder.relative_to(root)


def _bad_path(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="path")
