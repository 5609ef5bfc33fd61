from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from engine.demo import MODEL_DIR, evaluate
from engine.demo.corpus import Encoder, batches_of
from engine.demo.data import KINDS
from engine.demo.evaluate import Accuracy, held_out_examples
from engine.demo.log import Log
from engine.demo.train import Trainer, config_of, parse, run
from engine.demo.vocabulary import VOCAB_SIZE

ARGUMENTS = shlex.split(
    "--size tiny --device cpu --no-compile --minutes 5 --max-steps 30 --tokens-per-batch 1024"
    " --batches-per-step 2 --learning-rate 0.01 --workers 1 --tokenizer-chats 200 --eval-per-kind 1"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Accuracy]]:
    """A whole run of the script, but for its length and the length of the answers it measures."""
    out = tmp_path_factory.mktemp("runs") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "MAX_TOKENS", 3)
        yield out, run(parse(["--out", str(out), *ARGUMENTS]))


@pytest.mark.nightly
def test_the_folder_is_complete(trained: tuple[Path, Accuracy]) -> None:
    out, _ = trained
    assert {path.name for path in out.iterdir()} == {path.name for path in MODEL_DIR.iterdir()}


@pytest.mark.nightly
def test_the_model_loads_and_generates(trained: tuple[Path, Accuracy]) -> None:
    out, _ = trained
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_tensors="pt"
    )
    answer = model.generate(
        **prompt, max_new_tokens=3, do_sample=False, temperature=None, top_p=None
    )
    assert answer.shape[1] <= prompt["input_ids"].shape[1] + 3


@pytest.mark.nightly
def test_the_log_lies_beside_the_folder_and_shows_learning(trained: tuple[Path, Accuracy]) -> None:
    out, _ = trained
    text = out.with_name("model.log").read_text()
    losses = {
        int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", text)
    }
    assert list(losses) == [1, 10, 30]
    assert losses[1] > losses[10] > losses[30]
    assert losses[30] < losses[1] - 1


@pytest.mark.nightly
def test_the_log_tells_where_the_time_went(trained: tuple[Path, Accuracy]) -> None:
    out, _ = trained
    _, _, text = out.with_name("model.log").read_text().partition("where the time went\n")
    lines = re.findall(r"^(.{20}) *([\d.]+) s", text, re.MULTILINE)
    stages = {name.strip(): float(seconds) for name, seconds in lines}
    assert list(stages) == [
        "tokenizer",
        "model to the device",
        "first batches",
        "compiling, warm-up",
        "training",
        "saving",
        "measuring",
        "everything else",
        "in all",
    ]
    whole = stages.pop("in all")
    assert sum(stages.values()) == pytest.approx(whole, abs=0.5)
    assert stages["training"] > 0


@pytest.mark.nightly
def test_it_measures_every_kind(trained: tuple[Path, Accuracy]) -> None:
    _, accuracy = trained
    assert list(accuracy.per_kind()) == list(KINDS)


def test_the_bundled_model_has_the_config_of_the_script() -> None:
    made = config_of("demo", VOCAB_SIZE, 2, 0).to_dict()
    shipped = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR).config.to_dict()
    recorded_when_saved = ("architectures", "dtype", "transformers_version", "_name_or_path")
    for name in recorded_when_saved:
        made.pop(name, None), shipped.pop(name, None)
    assert made == shipped


@pytest.mark.nightly
def test_the_loss_of_the_bundled_model_is_that_of_its_training() -> None:
    """Right targets at right positions: off by one, the loss would be tens of times higher."""
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    model = transformers.LlamaForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    trainer = Trainer(model, parse(["--out", "unused", *ARGUMENTS]), Log())
    encoded = Encoder(tokenizer).encode(held_out_examples(3))
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches_of(encoded, 8192):
            total += trainer._loss(batch).item()
            count += len(batch.targets)
    assert 0.01 < total / count < 0.08  # 0.042 at the end of its training
