"""Finds the model that a name in a request stands for: the served one, or an adapter of the
tenant."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from engine.client.fleet import Fleet
from engine.errors import EngineDead
from engine.messages import AdapterRef
from gateway.config import Config
from gateway.errors import ModelNotFound, quoted
from tenants.access import resolve_model, visible_models
from tenants.types import Adapter, Principal


def max_model_len(engine: Fleet) -> int | None:
    """The most tokens of prompt and answer; None while the engine is away."""
    try:
        return engine.info.max_model_len
    except EngineDead:
        return None


class ServedModel(NamedTuple):
    """What a request runs on."""

    name: str
    """The name in answers, metrics and the ledger."""
    adapter: AdapterRef | None = None


class ServedModels:
    """The model of this server, and the adapters of tenants."""

    def __init__(self, config: Config) -> None:
        self.base = config.model_name
        folder = config.models.adapters_dir
        self._adapters_dir = None if folder is None else Path(folder)

    def find(self, principal: Principal, name: str | None) -> ServedModel:
        """The model that ``name`` stands for; None stands for the server's own. Raises
        ``ModelNotFound``, ``NotAllowed``.

        What belongs to another tenant is reported in the same words as what does not exist.
        """
        asked = self.base if name is None else name
        resolved = resolve_model(principal.key, asked)
        if resolved == self.base:
            return ServedModel(self.base)
        adapter = self._adapters(principal).get(resolved)
        if adapter is None:
            raise ModelNotFound(
                f"The model {quoted(asked)} does not exist; this server has {self.base!r}.",
                param="model",
            )
        return ServedModel(adapter.name, self.ref(adapter))

    def names(self, principal: Principal) -> tuple[str, ...]:
        """The names that a key may ask for, aliases included, the server's own model first."""
        return visible_models(principal.key, (self.base, *self._adapters(principal)))

    def adapter(self, principal: Principal, name: str) -> Adapter | None:
        """The adapter behind one of ``names``; None for the server's own model."""
        return self._adapters(principal).get(principal.key.model_aliases.get(name, name))

    def ref(self, adapter: Adapter) -> AdapterRef:
        """The engine's reference to an adapter. Its id stays unique even when a name is used
        again."""
        assert self._adapters_dir is not None
        path = self._adapters_dir / adapter.path
        return AdapterRef(name=adapter.id.hex, path=str(path), digest=adapter.digest)

    def _adapters(self, principal: Principal) -> dict[str, Adapter]:
        """The principal's adapters for the model of this server, by name."""
        own: Iterable[Adapter] = principal.adapters if self._adapters_dir is not None else ()
        return {
            adapter.name: adapter
            for adapter in own
            if adapter.parent == self.base and adapter.name != self.base
        }
