"""What cannot run is refused at load, with the reason. What can: ``test_families``."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.llm import LLM, SamplingParams, TokensPrompt
from engine.models.transformers_fallback import max_length
from engine.runner import load_runner
from engine.runner.startup.model import read_facts
from tests.engine.insides import runner_of
from tests.engine.models.families import CASES, FALLBACK_CASES, Case, write
from tests.engine.runner.emulated_graphs import emulate


def config(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder), device="cpu", num_gpu_blocks_override=50, num_threads=1, **options
    )


def save_config(folder: Path, architecture: str, **fields: Any) -> EngineConfig:
    """config.json alone, as transformers writes it."""
    import transformers

    small = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, **fields}
    made = getattr(transformers, architecture).config_class(**small)
    made.architectures = [architecture]
    made.save_pretrained(folder)
    return config(folder)


@pytest.mark.parametrize(
    ("architecture", "fields", "reason"),
    [
        ("BloomForCausalLM", {}, "does not go through transformers' attention interface"),
        ("FalconForCausalLM", {}, "does not go through transformers' attention interface"),
        ("MambaForCausalLM", {}, "keep state that is no KV cache"),
        ("BartForCausalLM", {}, "it is an encoder-decoder"),
        ("BertLMHeadModel", {"num_attention_heads": 4}, "is not causal"),
        ("Llama4ForCausalLM", {"num_local_experts": 2}, "'chunked_attention'"),
    ],
)
def test_what_cannot_run_is_refused_before_it_is_loaded(
    tmp_path: Path, architecture: str, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelLoadError, match=f"{architecture} has no implementation.*{reason}"):
        read_facts(save_config(tmp_path, architecture, **fields))


def test_attention_that_the_interface_does_not_tell_is_noticed(tmp_path: Path) -> None:
    case = Case("diff-llama", "DiffLlamaForCausalLM")
    with pytest.raises(ModelLoadError, match="results differ from transformers' own"):
        load_runner(config(write(case, tmp_path)))


def test_longrope_is_refused(tmp_path: Path) -> None:
    (phi3,) = (case for case in CASES if case.name == "phi3-longrope")
    with pytest.raises(ModelLoadError, match="with longrope a token's result depends on its batch"):
        read_facts(config(write(phi3, tmp_path), model_impl="transformers"))


def test_a_native_family_can_be_left_to_transformers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write(CASES[0], tmp_path)
    capfd.readouterr()
    runner = load_runner(config(folder, model_impl="transformers"))
    assert type(runner._forward_pass.executors.eager.model).__name__ == "TransformersModel"
    assert "Loading weights" not in capfd.readouterr().err  # the bar of transformers


def test_native_alone_can_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="'OPTForCausalLM' has no native implementation"):
        read_facts(msgspec_replace(save_config(tmp_path, "OPTForCausalLM"), model_impl="native"))


def msgspec_replace(of: EngineConfig, **changes: Any) -> EngineConfig:
    import msgspec

    return msgspec.structs.replace(of, **changes)


@pytest.fixture
def olmo2(tmp_path: Path) -> Path:
    (case,) = (case for case in FALLBACK_CASES if case.name == "olmo2")
    return write(case, tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [("drop", "missing tensor"), ("add", "unexpected tensor"), ("reshape", "tensor")],
)
def test_tensors_that_do_not_fit_are_named(olmo2: Path, change: str, reason: str) -> None:
    path = olmo2 / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    match change:
        case "drop":
            del tensors[name]
        case "add":
            name = "model.layers.1.mlp.more.weight"
            tensors[name] = torch.zeros(3)
        case "reshape":
            tensors[name] = torch.zeros(3, 4)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"{reason} .*{name}"):
        load_runner(config(olmo2))


def test_a_truncated_file_is_named(olmo2: Path) -> None:
    path = olmo2 / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read: it is cut short"):
        load_runner(config(olmo2))


def test_random_weights_need_no_checkpoint(tmp_path: Path) -> None:
    (case,) = (case for case in FALLBACK_CASES if case.name == "gpt2")
    write(case, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    runner = load_runner(config(tmp_path, load_format="dummy"))
    assert runner.num_blocks == 50


def case_of(name: str) -> Case:
    (case,) = (case for case in FALLBACK_CASES if case.name == name)
    return case


@pytest.mark.parametrize("name", ["gpt2", "opt", "phi", "cohere2"])
def test_graphs_change_no_token(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of padding in them write nothing."""
    folder = write(case_of(name), tmp_path)

    def outputs(*, graphs: bool) -> list[list[int]]:
        llm = LLM(
            folder,
            device="cpu",
            block_size=4,
            num_gpu_blocks_override=60,
            num_threads=1,
            max_num_seqs=4,
            attention_backend="torch",
        )
        runner = runner_of(llm)
        decoding = emulate(runner, monkeypatch, 1)[0] if graphs else None
        prompts = [TokensPrompt(prompt_token_ids=[5, 9, 44, 70][: i + 1]) for i in range(3)]
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        results = [list(r.outputs[0].token_ids) for r in llm.generate(prompts, params)]
        assert decoding is None or decoding.num_runs > 5
        return results

    assert outputs(graphs=True) == outputs(graphs=False)


def _let_it_look_at_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """As code does that refuses to go on with NaN."""
    from transformers import Olmo2Model

    compute = Olmo2Model.forward

    @functools.wraps(compute)  # whose parameters are looked at
    def looking(self: Olmo2Model, *args: Any, **kwargs: Any) -> Any:
        found = compute(self, *args, **kwargs)
        assert found[0].isfinite().all().item()
        return found

    monkeypatch.setattr(Olmo2Model, "forward", looking)


@pytest.mark.gpu
def test_a_model_that_looks_at_its_results_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(case_of("olmo2"), tmp_path)
    on_gpu = EngineConfig(model=str(folder), device="cuda", num_gpu_blocks_override=50)
    assert load_runner(on_gpu)._forward_pass.executors.eager.model.is_capturable
    _let_it_look_at_its_results(monkeypatch)
    runner = load_runner(on_gpu)
    assert not runner._forward_pass.executors.eager.model.is_capturable
    assert runner._forward_pass.graphs is None


def test_a_model_that_looks_at_its_results_finds_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _let_it_look_at_its_results(monkeypatch)
    torch.use_deterministic_algorithms(True)  # memory that was never written is NaN
    try:
        assert read_facts(config(write(case_of("olmo2"), tmp_path))).max_position_embeddings > 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_model_without_a_length_takes_the_one_asked_for() -> None:
    endless = SimpleNamespace(max_position_embeddings=None)
    assert max_length(endless, 99) == 99
    assert max_length(SimpleNamespace(max_position_embeddings=50), 99) == 50
    with pytest.raises(ModelLoadError, match="set max_model_len"):
        max_length(endless, None)


def test_a_field_of_the_wrong_type_is_named(olmo2: Path) -> None:
    path = olmo2 / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": "wide"}))
    with pytest.raises(ModelLoadError, match=r"config\.json: .*'hidden_size'"):
        read_facts(config(olmo2))


def test_a_kind_that_nobody_knows_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Foo"], "model_type": "foo"}')
    with pytest.raises(ModelLoadError, match=r"config\.json: model_type 'foo' is known neither"):
        read_facts(config(tmp_path))


def test_code_of_strangers_runs_only_when_trusted(tmp_path: Path) -> None:
    (tmp_path / "strange.py").write_text("raise SystemExit('it ran')")
    fields = {
        "architectures": ["StrangeForCausalLM"],
        "model_type": "strange",
        "auto_map": {"AutoConfig": "strange.StrangeConfig"},
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelLoadError, match="trust_remote_code"):
        read_facts(config(tmp_path))
    with pytest.raises(SystemExit, match="it ran"):
        read_facts(config(tmp_path, trust_remote_code=True))
