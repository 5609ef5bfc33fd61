"""What admission hands over: a request that may run."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import msgspec

from engine.messages import AdapterRef
from engine.sampling_params import SamplingParams
from gateway.compliance import LooseCalls, Unenforced
from gateway.parsers.answer import AnswerParser
from tenants.limits import Price
from tenants.quota import Hold
from tenants.types import Principal


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A request that passed ``admission``: it may run."""

    id: UUID
    principal: Principal
    model: str
    prompts: list[list[int]]
    """Token ids. Chats have one prompt, text completions may have several."""
    params: SamplingParams
    stop: tuple[str, ...]
    num_choices: int
    """Of each prompt."""
    make_parser: Callable[[], AnswerParser] | None
    skip_special_tokens: bool
    cache_salt: str
    adapter: AdapterRef | None = None
    """What ``model`` is beside the server's own."""
    hold: Hold
    """Its part of the tenant's limits; whoever begins the request sees that it ends."""
    price: Price = Price()
    priority: int = 0
    service_tier: str | None = None
    """What the answer names; None where the request named none."""
    unenforced: Unenforced | None = None
    """Of the answer's document, to be checked at the end."""
    loose_calls: LooseCalls | None = None
    """Likewise of the calls in its place."""
    end_user: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))
