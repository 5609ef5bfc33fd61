from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.spec.config import SpeculativeConfig


def test_defaults_are_vllms() -> None:
    ngram = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    assert ngram.lookup == (5, 5)
    suffix = SpeculativeConfig(method="suffix")
    assert suffix.num_tokens == suffix.max_tree_depth == 24
    assert (suffix.max_cached_requests, suffix.max_spec_factor) == (10_000, 1.0)
    assert suffix.min_token_prob == 0.1


@pytest.mark.parametrize(
    ("asked", "lookup"),
    [
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4)),
    ],
)
def test_one_bound_of_the_lookup_stands_in_for_the_other(
    asked: dict[str, Any], lookup: tuple[int, int]
) -> None:
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=1, **asked)
    assert config.lookup == lookup


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ngram"}, "num_speculative_tokens is missing: say how many"),
        ({"method": "ngram", "num_speculative_tokens": 0}, r"must be in \[1, 32\], got 0"),
        ({"method": "suffix", "num_speculative_tokens": 99}, r"must be in \[1, 32\], got 99"),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "suffix_decoding_max_tree_depth": 2},
            "max_tree_depth has no effect with method 'ngram': it belongs to 'suffix'",
        ),
        (
            {"method": "suffix", "prompt_lookup_min": 2},
            "prompt_lookup_min has no effect with method 'suffix'",
        ),
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_min": 4,
                "prompt_lookup_max": 2,
            },
            r"prompt_lookup_min must be in \[1, prompt_lookup_max\], got 4",
        ),
        *(
            (
                {"method": "suffix", f"suffix_decoding_{name}": value},
                rf"suffix_decoding_{name} must be in \[{low}, {high}\], got {value}",
            )
            for name, low, high in (
                ("max_tree_depth", 1, 1024),
                ("max_cached_requests", 0, 1_000_000),
                ("max_spec_factor", 0, 1024),
            )
            for value in (low - 1, high + 1)
        ),
        (
            {"method": "suffix", "suffix_decoding_min_token_prob": 1.5},
            r"suffix_decoding_min_token_prob must be in \[0, 1\], got 1.5",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig(**options)


def test_the_bounds_belong_to_the_range() -> None:
    least = SpeculativeConfig(
        method="suffix",
        suffix_decoding_max_tree_depth=1,
        suffix_decoding_max_cached_requests=0,
        suffix_decoding_max_spec_factor=0,
        suffix_decoding_min_token_prob=0,
    )
    assert (least.max_tree_depth, least.max_cached_requests) == (1, 0)
    assert (least.max_spec_factor, least.min_token_prob) == (0, 0)
    most = SpeculativeConfig(
        method="suffix",
        suffix_decoding_max_tree_depth=1024,
        suffix_decoding_max_cached_requests=1_000_000,
        suffix_decoding_max_spec_factor=1024,
        suffix_decoding_min_token_prob=1,
    )
    assert (most.max_tree_depth, most.max_cached_requests) == (1024, 1_000_000)
    assert (most.max_spec_factor, most.min_token_prob) == (1024, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"synthetic_acceptance_length": 2.0}, "no effect unless rejection_sample_method"),
        ({"rejection_sample_method": "synthetic"}, "needs either synthetic_acceptance_rates"),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 4.5},
            r"synthetic_acceptance_length must be in \[1, 4\], got 4.5",
        ),
        *(
            (
                {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates},
                "must be 3 numbers in .* none above the one before",
            )
            for rates in ((0.5, 0.7, 0), (0.5, 0.4), (1.1, 0.5, 0.4), (0.5, 0.4, -0.1))
        ),
    ],
)
def test_synthetic_acceptance_is_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig(method="ngram", num_speculative_tokens=3, **options)


def test_a_length_becomes_rates() -> None:
    config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=4,
        rejection_sample_method="synthetic",
        synthetic_acceptance_length=3.2,
    )
    rates = config.synthetic_rates
    assert rates is not None
    assert 1 + sum(rates) == pytest.approx(3.2)
    assert rates[1] == pytest.approx(rates[0] ** 2)


def test_rates_are_taken_as_they_are() -> None:
    rates = (1.0, 0.5, 0.0)
    config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=3,
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=rates,
    )
    assert config.synthetic_rates == rates
    assert SpeculativeConfig(method="suffix").synthetic_rates is None


def test_a_draft_network_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = SpeculativeConfig(method="eagle3", model=str(tmp_path), num_speculative_tokens=3)
    assert config.model_dir == tmp_path


def test_a_draft_network_needs_a_folder_and_a_lookup_has_none() -> None:
    with pytest.raises(ConfigError, match=r"speculative_config.model is missing: .*'eagle3'"):
        SpeculativeConfig(method="eagle3", num_speculative_tokens=3)
    with pytest.raises(ConfigError, match="model has no effect with method 'ngram'"):
        SpeculativeConfig(method="ngram", model="m", num_speculative_tokens=3)


def test_an_unknown_key_or_method_is_refused() -> None:
    for table in ({"method": "magic"}, {"method": "suffix", "tokens": 3}):
        with pytest.raises(msgspec.ValidationError, match="speculative_config"):
            msgspec.convert({"model": "m", "speculative_config": table}, EngineConfig)
