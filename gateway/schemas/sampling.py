"""The sampling fields, which Chat Completions and Completions have in common."""

from __future__ import annotations

import msgspec

from gateway.schemas.output_format import ResponseFormat, StructuredOutputsField


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranges are OpenAI's for its own fields, else vLLM's; ``admission.sampling`` checks them."""

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    """Token ids, as text, to what is added to their logits."""
    stop: str | list[str] | None = None
    """Looked for in the content: neither in what the model thinks nor in its calls."""
    seed: int | None = None
    user: str | None = None
    """Names the end user in log lines and in the ledger."""
    response_format: ResponseFormat | None = None
    # Not OpenAI's; SDKs send them through ``extra_body``. Names and meanings as in vLLM.
    top_k: int | None = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    """Not vLLM's: as in llama.cpp and Aphrodite."""
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputsField | None = None
    guided_json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """This and the next three: older names of the fields of ``structured_outputs``."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    priority: int | None = None
    """How far behind the tenant's other requests this one may stand: 0 or more."""
    cache_salt: str | None = None
    """Requests share cached prompts only with those that send the same one."""
