"""AutoModelForCausalLM takes what it heeds and refuses the rest; generate of transformers passes it
more than forward takes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small import case_of
from small_diffusion import TEXTS, made
from test_huggingface_use import QUERIES, causal
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

from armd import log_likelihood
from armd.baselines.d3pm import D3pm
from armd.baselines.transformer_xl import TransformerXl
from armd.errors import ArmdError
from armd.model.causal_armd import ArmdForCausalLM
from armd.model.configuration_armd import ArmdConfig
from armd.model.modeling_armd import ArmdLM
from armd.model.order import left_to_right


@pytest.mark.parametrize("query", QUERIES)
def test_the_causal_class_refuses_holes_and_positions_of_other_texts(query: str) -> None:
    model, tokens = causal(query), torch.tensor([[1, 2, 3, 4, 5, 6]] * 2)
    for hole in ([1, 1, 0, 1, 1, 1], [1, 0, 1, 0, 1, 1], [0, 1, 1, 1, 1, 0], [1, 0, 0, 1, 1, 1]):
        mask = torch.tensor([[1] * 6, hole])
        with pytest.raises(ArmdError, match="both sides or between"):
            model(tokens, attention_mask=mask, labels=tokens)
        with pytest.raises(ArmdError, match="both sides or between"):
            model.generate(tokens, attention_mask=mask, use_cache=False, max_new_tokens=2)
    left = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    place = torch.arange(6)[None]
    for mask, good in (
        (None, place),
        (left, place),
        (left, torch.tensor([[9, 9, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])),
    ):
        same = model(tokens, attention_mask=mask, position_ids=good).logits
        assert torch.equal(same, model(tokens, attention_mask=mask).logits)
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]])
    for mask in (None, left):
        for wrong in (packed, packed.expand(2, -1), place + 1, place[:, :1], place[0], place[None]):
            with pytest.raises(ArmdError, match="position_ids"):
                model(tokens, attention_mask=mask, position_ids=wrong)
    with pytest.raises(ArmdError, match="position_ids"):
        model.generate(tokens, position_ids=packed, max_new_tokens=2)


def letters(size: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the letters from a on."""
    words = {chr(ord("a") + i): i for i in range(size)}
    backend = Tokenizer(WordLevel(words, unk_token="a"))
    backend.pre_tokenizer, backend.decoder = Split("", "isolated"), Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("query", QUERIES)
def test_generate_of_transformers_stops_at_strings(query: str) -> None:
    model, tokens = causal(query), torch.tensor([[1, 2, 3]])
    options: Any = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    free = model.generate(tokens, **options)[0].tolist()
    stop = chr(ord("a") + free[4])
    tokenizer = letters(model.config.vocab_size)
    made = model.generate(tokens, stop_strings=[stop], tokenizer=tokenizer, **options)
    end = 1 + next(k for k in range(3, 9) if free[k] == free[4])
    assert made[0].tolist() == free[:end]


def test_the_carried_generate_names_what_it_does_not_take(unchecked: None) -> None:
    model, tokens = case_of("random", 7, 6).model, torch.tensor([[1, 2, 3]])
    for name, value in (("num_beams", 4), ("max_length", 9), ("repetition_penalty", 2.0)):
        with pytest.raises(ArmdError, match=f"takes no {name}"):
            model.generate(tokens, max_new_tokens=2, **{name: value})
    assert model.generate(tokens, max_new_tokens=2, num_beams=None).shape == (1, 5)


@pytest.mark.parametrize("query", QUERIES)
def test_logits_are_kept_at_indices_too(query: str) -> None:
    """As models of transformers do: a number is of the last ones, a tensor names places."""
    model, tokens = causal(query), torch.tensor([[1, 2, 3, 4, 5, 6]] * 2)
    whole = model(tokens).logits
    for places in ([0, 4, 2], [-1], [3]):
        for cached in {False, model.cached}:
            kept = model(tokens, logits_to_keep=torch.tensor(places), use_cache=cached).logits
            torch.testing.assert_close(kept, whole[:, places])
    for every in (0, None):
        assert torch.equal(model(tokens, logits_to_keep=every).logits, whole)
    torch.testing.assert_close(model(tokens, logits_to_keep=2).logits, whole[:, -2:])


@pytest.mark.parametrize("asked", ["flash_attention_2", "flex_attention", "nonsense"])
def test_another_attention_is_refused_for_what_it_is(asked: Any, tmp_path: Path) -> None:
    """The folder is a good one; what every tool passes is taken."""
    causal("neighbor").save_pretrained(tmp_path)
    said = "has its own attention, not .*; leave attn_implementation out"
    config = ArmdConfig.from_pretrained(tmp_path, attn_implementation=asked)  # as Auto classes do
    for kind in (ArmdLM, ArmdForCausalLM):
        for given in ({"attn_implementation": asked}, {"config": config}):
            with pytest.raises(ArmdError, match=said):
                kind.from_pretrained(tmp_path, **given)
        for usual in ("eager", "sdpa", None):
            assert kind.from_pretrained(tmp_path, attn_implementation=usual)


def test_trainer_shifts_labels_that_it_smooths_itself(tmp_path: Path, unchecked: None) -> None:
    """Without that, a model would learn to copy the token before."""
    model, tokens = causal("neighbor"), torch.tensor([[1, 2, 3, 4, 5, 6]] * 2)
    options: Any = {"label_smoothing_factor": 1e-6, "report_to": [], "use_cpu": True}
    trainer = Trainer(model=model, args=TrainingArguments(str(tmp_path), **options))
    rows = {"input_ids": tokens, "labels": tokens.clone()}
    smoothed = trainer.compute_loss(model, dict(rows))
    torch.testing.assert_close(smoothed, model(**rows).loss, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [D3pm, TransformerXl])
def test_trainer_trains_baselines(kind: Any, tmp_path: Path, unchecked: None) -> None:
    """On rows with labels, several to a step: the loss that it logs is that of each."""
    model, texts = made(kind).float().requires_grad_(True), TEXTS[:4].long()
    steps: Any = {"max_steps": 1, "gradient_accumulation_steps": 2, "learning_rate": 0.0}
    quiet: Any = {"report_to": [], "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
    arguments = TrainingArguments(str(tmp_path), per_device_train_batch_size=2, **steps, **quiet)
    rows: Any = [{"input_ids": text, "labels": text} for text in texts]
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    logged = trainer.state.log_history[0]["loss"]
    losses = [float(model.eval()(texts, labels=texts).loss) for _ in range(99)]
    assert min(losses) * 0.7 < logged < max(losses) * 1.3


@pytest.mark.parametrize("query", QUERIES)
def test_a_text_of_the_whole_length_is_taken(query: str) -> None:
    """Tools for causal models cut texts to max_position_embeddings; the last logits are for a token
    behind them."""
    model = causal(query)
    ours, n = ArmdLM(model.config).eval(), model.config.max_length
    ours.load_state_dict(model.state_dict())
    tokens = torch.randint(7, (2, n), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, exact = model(tokens).logits, ours(tokens, order=left_to_right(n)).logits
    assert torch.allclose(logits[:, :-1], exact[:, 1:], atol=1e-5) and logits.isfinite().all()
    if model.cached:
        with torch.no_grad():
            read = model(tokens[:, :-1], use_cache=True).past_key_values
            last = model(tokens[:, -1:], past_key_values=read).logits
        assert torch.allclose(last, logits[:, -1:], atol=1e-5)
    longer = tokens[:, [*range(n), 0]]
    with pytest.raises(ArmdError, match=f"{n + 1} tokens pass max_length"):
        model(longer)
    with pytest.raises(ArmdError, match=f"{n + 1} tokens passes max_length"):
        log_likelihood(model, longer, left_to_right(n + 1))
