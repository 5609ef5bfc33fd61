"""How to speculate, with the keys of vLLM's ``speculative_config``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from engine import hub
from engine.errors import ConfigError

Method = Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa"]
RejectionSampleMethod = Literal["standard", "synthetic"]
TEXT_METHODS = ("ngram", "suffix")
"""Methods whose drafts are copied from texts, also from what a client predicts."""
NETWORK_METHODS: tuple[Method, ...] = ("draft_model", "eagle", "eagle3", "medusa")
MAX_SPECULATIVE_TOKENS = 32

_DEFAULT_TOKENS: dict[str, int] = {"suffix": 24}
_DEFAULT_LOOKUP = 5
# Keys that only one method reads: with another they would have no effect.
_OWN_KEYS = {
    "prompt_lookup_min": "ngram",
    "prompt_lookup_max": "ngram",
    "suffix_decoding_max_tree_depth": "suffix",
    "suffix_decoding_max_cached_requests": "suffix",
    "suffix_decoding_max_spec_factor": "suffix",
    "suffix_decoding_min_token_prob": "suffix",
}


class SpeculativeConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Who proposes drafts, and how many. Checked on construction (``ConfigError``)."""

    method: Method
    model: str | None = None
    """``draft_model``, ``eagle``, ``eagle3``, ``medusa``: the network that drafts, a folder or the
    id of a repository on the hub."""
    revision: str | None = None
    """Of that repository: branch, tag or commit."""
    num_speculative_tokens: int | None = None
    """Drafts for a request in a step, at most. Needed by all methods but ``suffix`` (24)."""
    adaptive: bool = True
    """Draft fewer tokens, or none, where checking them takes more time than it saves: judged from
    what was accepted before and from what steps cost, which is measured when the engine starts."""
    rejection_sample_method: RejectionSampleMethod = "standard"
    """``synthetic`` accepts drafts by chance at given rates, whatever they are: to measure speed
    without a trained draft network. What is generated means nothing then."""
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    """``synthetic``: for each place of a draft, how often all up to it are accepted."""
    synthetic_acceptance_length: float | None = None
    """``synthetic``: or the mean number of tokens a step, the model's own included."""
    prompt_lookup_min: int | None = None
    """``ngram``: the shortest repeated run of tokens that is worth a draft (5, or the maximum)."""
    prompt_lookup_max: int | None = None
    """``ngram``: no longer run is looked for (5, or the minimum)."""
    suffix_decoding_max_tree_depth: int | None = None
    """``suffix``: no longer repetition is told from a shorter one (24)."""
    suffix_decoding_max_cached_requests: int | None = None
    """``suffix``: finished outputs to draft from, beside a request's own tokens (10000)."""
    suffix_decoding_max_spec_factor: float | None = None
    """``suffix``: drafts for each token of the repetition that suggests them (1)."""
    suffix_decoding_min_token_prob: float | None = None
    """``suffix``: how often a draft must have followed before, as a share (0.1)."""

    def __post_init__(self) -> None:
        for name, method in _OWN_KEYS.items():
            if getattr(self, name) is not None and self.method != method:
                raise ConfigError(
                    f"speculative_config.{name} has no effect with method {self.method!r}:"
                    f" it belongs to {method!r}"
                )
        if self.method in NETWORK_METHODS and not self.model:
            raise ConfigError(
                f"speculative_config.model is missing: method {self.method!r} needs the folder of a"
                " draft network"
            )
        for name in ("model", "revision"):
            if self.method not in NETWORK_METHODS and getattr(self, name) is not None:
                raise ConfigError(
                    f"speculative_config.{name} has no effect with method {self.method!r}"
                )
        if self.num_speculative_tokens is None and self.method not in _DEFAULT_TOKENS:
            raise ConfigError(
                "speculative_config.num_speculative_tokens is missing:"
                " say how many tokens to draft, such as 3"
            )
        _in_range("num_speculative_tokens", self.num_tokens, 1, MAX_SPECULATIVE_TOKENS)
        self._check_synthetic()
        low, high = self.lookup
        _in_range("prompt_lookup_min", low, 1, high, "prompt_lookup_max")
        _in_range("suffix_decoding_max_tree_depth", self.max_tree_depth, 1, 1024)
        _in_range("suffix_decoding_max_cached_requests", self.max_cached_requests, 0, 1_000_000)
        _in_range("suffix_decoding_max_spec_factor", self.max_spec_factor, 0, 1024)
        _in_range("suffix_decoding_min_token_prob", self.min_token_prob, 0, 1)

    def _check_synthetic(self) -> None:
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        given = (rates is not None) + (length is not None)
        if self.rejection_sample_method == "standard":
            if given:
                raise ConfigError(
                    "speculative_config.synthetic_acceptance_rates and _length have no effect"
                    " unless rejection_sample_method is 'synthetic'"
                )
            return
        if given != 1:
            raise ConfigError(
                "speculative_config: rejection_sample_method 'synthetic' needs either"
                " synthetic_acceptance_rates or synthetic_acceptance_length"
            )
        if length is not None:
            _in_range("synthetic_acceptance_length", length, 1, self.num_tokens + 1)
        elif rates is not None and (
            len(rates) != self.num_tokens
            or not all(0 <= rate <= 1 for rate in rates)
            or sorted(rates, reverse=True) != list(rates)
        ):
            raise ConfigError(
                f"speculative_config.synthetic_acceptance_rates must be {self.num_tokens} numbers"
                f" in [0, 1], none above the one before, got {list(rates)}"
            )

    # ---- with the defaults filled in ------------------------------------------------------------

    @property
    def model_dir(self) -> Path:
        """Downloads a hub repository when it is first asked for (``ModelLoadError``)."""
        assert self.model is not None, "the method has no model"
        return hub.fetch(self.model, self.revision, also=("*.bin", "*.pt"))

    @property
    def num_tokens(self) -> int:
        asked = self.num_speculative_tokens
        return _DEFAULT_TOKENS.get(self.method, 0) if asked is None else asked

    @property
    def lookup(self) -> tuple[int, int]:
        """``prompt_lookup_min`` and ``prompt_lookup_max``; each stands in for the other."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        low = low if low is not None else (_DEFAULT_LOOKUP if high is None else high)
        return low, low if high is None else high

    @property
    def synthetic_rates(self) -> tuple[float, ...] | None:
        """``synthetic_acceptance_rates``, or those of a constant chance that give the length."""
        if self.synthetic_acceptance_length is None:
            return self.synthetic_acceptance_rates
        low, high = 0.0, 1.0
        for _ in range(50):
            chance = (low + high) / 2
            length = sum(chance**place for place in range(self.num_tokens + 1))
            low, high = (
                (chance, high) if length < self.synthetic_acceptance_length else (low, chance)
            )
        return tuple(high**place for place in range(1, self.num_tokens + 1))

    @property
    def max_tree_depth(self) -> int:
        return _or(self.suffix_decoding_max_tree_depth, 24)

    @property
    def max_cached_requests(self) -> int:
        return _or(self.suffix_decoding_max_cached_requests, 10_000)

    @property
    def max_spec_factor(self) -> float:
        return _or(self.suffix_decoding_max_spec_factor, 1.0)

    @property
    def min_token_prob(self) -> float:
        return _or(self.suffix_decoding_min_token_prob, 0.1)


_T = TypeVar("_T")


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _in_range(
    name: str, value: float, low: float, high: float, high_name: str | None = None
) -> None:
    if not low <= value <= high:
        raise ConfigError(
            f"speculative_config.{name} must be in [{low}, {high_name or high}], got {value}"
        )
