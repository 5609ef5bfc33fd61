"""System prompts that are not secret, whose entries in the prefix cache tenants may share.

Normally no tenant can observe what another one computes, not even by time. For a text that
everybody knows, that costs memory and time, and hides only who has used it when. So the operator
may name system prompts, each with the tenants that chose to share it. These tenants can tell from
the time of a request whether one of them has used the prompt recently; nobody learns anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from engine.errors import InvalidRequest
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway.config import PublicPrefix
from gateway.errors import ConfigError


class PublicPrefixes:
    """Knows which leading tokens of a prompt are public, and for which tenants."""

    def __init__(
        self,
        prefixes: Mapping[str, PublicPrefix],
        *,
        template: ChatTemplate,
        tokenizer: Tokenizer,
    ) -> None:
        """Tokenize the prefixes. Raises ``ConfigError`` if the chat template refuses one."""
        self._by_tenant: dict[str, list[list[int]]] = {}
        for name, prefix in prefixes.items():
            try:
                token_ids = _token_ids(prefix.system, template, tokenizer)
            except InvalidRequest as error:
                raise ConfigError(f"models.public_prefixes.{name}: {error}") from None
            for tenant in prefix.tenants:
                self._by_tenant.setdefault(tenant, []).append(token_ids)

    def num_public_tokens(self, tenant: str, prompt_token_ids: Sequence[int]) -> int:
        """How far the prompt is one of those that the tenant (by its name) shares."""
        return max(
            (_num_common(known, prompt_token_ids) for known in self._by_tenant.get(tenant, ())),
            default=0,
        )


def _token_ids(system: str, template: ChatTemplate, tokenizer: Tokenizer) -> list[int]:
    """All tokens of a conversation with this system prompt that do not depend on what follows."""

    def encode(user: str) -> list[int]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        text = template.render(messages)
        return tokenizer.encode(text, add_special_tokens=False)

    one, other = encode("a"), encode("b")
    return one[: _num_common(one, other)]


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
