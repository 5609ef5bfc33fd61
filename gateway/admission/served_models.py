"""Finds the model that a name in a request stands for: one of this server, or an adapter of the
tenant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.messages import AdapterRef
from gateway.admission.model import Model
from gateway.errors import ModelNotFound, quoted
from tenants.access import resolve_model, visible_models
from tenants.limits import Price
from tenants.types import Adapter, Principal


class ServedModel(NamedTuple):
    """What a request runs on."""

    name: str
    """The name in answers, metrics and the ledger."""
    base: Model
    """The model of that name, or the one that the adapter changes."""
    adapter: AdapterRef | None = None


class ServedModels:
    """The models of this server, and the adapters of tenants."""

    def __init__(self, models: Sequence[Model]) -> None:
        """``models``: the default one is the first."""
        self.all = tuple(models)
        self._by_name = {model.name: model for model in models}
        self._aliases = {
            alias: model.name for model in models for alias in model.config.models.aliases
        }

    @property
    def default(self) -> Model:
        """The model of requests that name none."""
        return self.all[0]

    @property
    def lowest_price(self) -> Price:
        """No request costs less."""
        prices = [model.price for model in self.all]
        return Price(
            prompt=min(price.prompt for price in prices),
            cached=min(price.cached for price in prices),
            completion=min(price.completion for price in prices),
        )

    @property
    def any_sees(self) -> bool:
        return any(model.vision is not None for model in self.all)

    def is_taken(self, name: str) -> bool:
        """Whether a model of this server has this name."""
        return name in self._by_name or name in self._aliases

    def find(self, principal: Principal, name: str | None) -> ServedModel:
        """The model that ``name`` stands for; None stands for the default one. Raises
        ``ModelNotFound``, ``NotAllowed``.

        What belongs to another tenant is reported in the same words as what does not exist.
        """
        asked = self.default.name if name is None else name
        resolved = resolve_model(principal.key, asked, self._aliases)
        if (model := self._by_name.get(resolved)) is not None:
            return ServedModel(resolved, model)
        for adapter, base in self._adapters(principal):
            if adapter.name == resolved:
                return ServedModel(resolved, base, ref(adapter, base))
        names = ", ".join(map(repr, self._by_name))
        raise ModelNotFound(
            f"The model {quoted(asked)} does not exist; this server has {names}.", param="model"
        )

    def names(
        self, principal: Principal, *, with_loading: bool = False, generating: bool = False
    ) -> tuple[str, ...]:
        """The names that a key may ask for, aliases included, this server's own models first.
        ``with_loading``: also of those that no engine has served yet. ``generating``: only those
        that generate text."""
        here = [
            model
            for model in self.all
            if (with_loading or model.engine.has_served)
            and not (generating and model.pooling is not None)
        ]
        served = (
            *(model.name for model in here),
            *(adapter.name for adapter, base in self._adapters(principal) if base in here),
        )
        return visible_models(principal.key, served, self._aliases)

    def adapter(self, principal: Principal, name: str) -> Adapter | None:
        """The adapter behind one of ``names``; None for a model of this server."""
        resolved = principal.key.model_aliases.get(name, name)
        return next((one for one, _ in self._adapters(principal) if one.name == resolved), None)

    def _adapters(self, principal: Principal) -> Iterator[tuple[Adapter, Model]]:
        """The principal's adapters for models of this server, each with its model."""
        for adapter in principal.adapters:
            base = self._by_name.get(adapter.parent)
            if base is None or base.adapters_dir is None or self.is_taken(adapter.name):
                continue
            yield adapter, base


def ref(adapter: Adapter, base: Model) -> AdapterRef:
    """The engine's reference to an adapter. Its id stays unique even when a name is used again."""
    assert base.adapters_dir is not None
    path = base.adapters_dir / adapter.path
    return AdapterRef(name=adapter.id.hex, path=str(path), digest=adapter.digest)
