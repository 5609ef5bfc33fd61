"""Puts the tokens of pictures into the prompt of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from gateway.images.images import Looked, ModelVision
from gateway.images.memory import Held
from gateway.prompts.prompt import Prompt
from gateway.schemas.chat import Picture
from tenants.lanes import Turn


class RequestImages:
    """The pictures of one request while it is admitted: few of a tenant's requests have theirs in
    memory."""

    def __init__(self, tenant: UUID) -> None:
        self._tenant = tenant
        self._vision: ModelVision | None = None
        self._looked: list[Looked] = []
        self._turn: Turn | None = None

    @property
    def num_tokens(self) -> int:
        """What the pictures take in the prompt."""
        return sum(len(one.token_ids) for one in self._looked)

    async def measure(self, vision: ModelVision | None, pictures: Sequence[Picture]) -> None:
        """Read the pictures and their headers, from which their tokens follow. Raises as
        ``Images.turn`` and ``ModelVision.look`` do."""
        assert vision is not None, "a prompt for a model that reads text only has no pictures"
        self._vision = vision
        self._turn = await vision.images.turn(self._tenant)
        self._looked = await vision.look(pictures, self._tenant)

    async def look(self, vision: ModelVision | None, prompt: Prompt) -> Prompt:
        """``measure`` the pictures of a prompt. Returns it with their tokens in place of their
        placeholders, at which ``places`` point then."""
        await self.measure(vision, prompt.pictures)
        (token_ids,) = prompt.token_ids
        expanded: list[int] = []
        offsets: list[int] = []
        begin = 0
        for one, place in zip(self._looked, prompt.places, strict=True):
            expanded += token_ids[begin:place]
            offsets.append(len(expanded))
            expanded += one.token_ids
            begin = place + 1
        return prompt._replace(token_ids=[expanded + token_ids[begin:]], places=offsets)

    async def prepare(self, offsets: Sequence[int]) -> Held:
        """Decode and resize the pictures, whose tokens begin at ``offsets``. Raises as
        ``ModelVision.prepare`` does."""
        assert self._vision is not None
        return await self._vision.prepare(self._looked, offsets, self._tenant)

    def end(self) -> None:
        """The request is admitted, or refused. Idempotent."""
        self._looked = []
        if self._turn is not None:
            self._turn.leave()
