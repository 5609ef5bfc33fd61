"""The result of admission: a request that may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from engine.messages import AdapterRef
from engine.sampling_params import SamplingParams
from gateway.admission.model import Model
from gateway.admission.unenforced import LooseCalls, Unenforced
from gateway.images.memory import Held
from gateway.parsers.answer import AnswerParser
from gateway.prompts.prompt import Echo
from tenants.limits import Price
from tenants.quota import Hold
from tenants.types import Principal


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has passed ``admission``."""

    id: UUID
    principal: Principal
    model: str
    base: Model
    """The model of that name, or the one that the adapter changes."""
    prompts: list[list[int]]
    """Token ids. Chats have one prompt, text completions may have several."""
    second_texts: list[int | None] = []
    """As in ``PoolingParams``, for each of ``prompts``, if vectors or scores are asked for."""
    echoes: list[Echo] = []
    """What to repeat before each answer, for text completions; one for each choice."""
    prediction: list[int] = []
    """The token ids that each answer is expected to have."""
    params: SamplingParams
    stop: tuple[str, ...]
    num_choices: int
    """The number of answers to each prompt."""
    make_parser: Callable[[], AnswerParser] | None
    skip_special_tokens: bool
    cache_salt: str
    adapter: AdapterRef | None = None
    """The adapter behind ``model``; None for a model of the server."""
    images: Held | None = None
    """The pictures of a chat. Whoever ends the request closes them."""
    num_image_tokens: int = 0
    """What they take of the prompt."""
    hold: Hold
    """The request's reservation. Whoever begins the request must have it settled or released."""
    price: Price = Price()
    priority: int = 0
    service_tier: str | None = None
    """The tier that the answer names; None if the request named none."""
    unenforced: Unenforced | None = None
    """What must be checked of the finished document; None if nothing."""
    loose_calls: LooseCalls | None = None
    """What must be checked of finished calls; None if the request has no tools."""
    end_user: str | None = None
    ignored: tuple[str, ...] = ()
    """Fields that the request set and that change nothing, in the client's words."""

    @property
    def image_places(self) -> Sequence[str]:
        """What its client calls its pictures."""
        return () if self.images is None else self.images.places

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))
