"""As users of transformers treat a model: padding, causal logits, generate, resizing, PEFT-like
keyword arguments; and a saved folder that writes where armd is not installed."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from small import case_of
from test_huggingface import Held, run_alone
from torch.nn import functional as F

import armd
from armd.data.tokenizer import byte_tokenizer, with_ends
from armd.errors import ArmdError
from armd.model.causal_armd import ArmdForCausalLM
from armd.order import Order
from armd.runtime.atomic_files import read_plain_files
from armd.train.export import export

QUERIES = ("prefix", "mean", "neighbor", "shift")
N, PAD = 7, (3, 1)
"""Tokens of a text, and of the padding beside each of two."""


def padded(tokens: torch.Tensor, order: Order, side: str) -> tuple[Any, Any, Any]:
    """Two texts of N and N - 2 tokens beside padding; the order's part among them unchanged."""
    width = N + max(PAD)
    ids, mask = torch.full((2, width), 3), torch.zeros(2, width, dtype=torch.long)
    orders = []
    for row, pad in enumerate(PAD):
        n = width - pad
        start = pad if side == "left" else 0
        text = F.pad(tokens[row], (0, n - N), value=1)
        ids[row, start : start + n], mask[row, start : start + n] = text, 1
        real = torch.cat([order.position, torch.arange(N, n)]) + start
        rest = torch.tensor([p for p in range(width) if p not in set(real.tolist())])
        last = int(order.block.max()) + 1
        block = torch.cat([order.block, last + torch.arange(width - N)])
        orders.append(Order(torch.cat([real, rest]), block))
    return ids, mask, armd.order.stack(orders)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("query", QUERIES)
def test_padding_changes_no_logit_and_no_score(query: str, side: str) -> None:
    case = case_of("random", N, 4, query=query, n_two_stream=2)
    model, tokens = case.model, case.tokens
    kinds = {"natural": armd.order.left_to_right(N)}
    if query != "shift":
        kinds |= {"random": case.order, "strided": armd.order.strided(N, 3)}
    for order in kinds.values():
        ids, mask, whole = padded(tokens, order, side)
        if query == "shift":
            whole = armd.order.left_to_right(ids.shape[1])
        first = (whole.position if whole.batch else whole.position[None]).expand(ids.shape)
        for row, pad in enumerate(PAD):
            n = ids.shape[1] - pad
            real = mask[row].gather(0, first[row]) != 0
            text = ids[row, mask[row] != 0][None]
            own = Order(
                torch.cat([order.position, torch.arange(N, n)]),
                torch.cat([order.block, int(order.block.max()) + 1 + torch.arange(n - N)]),
            )
            want = model(text, order=own).logits[0]
            got = model(ids, order=whole, attention_mask=mask).logits[row][real]
            torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
            want = armd.log_likelihood(model, text, own)[0]
            found = armd.log_likelihood(model, ids, whole, attention_mask=mask)[row]
            torch.testing.assert_close(found[real], want, atol=1e-5, rtol=0)
            assert not found[~real].any()


@pytest.mark.parametrize("query", ["prefix", "neighbor"])
def test_padding_is_not_trained_on(query: str) -> None:
    """The loss of a padded batch, and its gradients, are those of the texts alone."""
    model = case_of("random", N, 4, query=query).model.train()
    texts = [torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[6, 5, 4]])]

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    alone = sum(model(t, labels=t).loss * t.shape[1] for t in texts) / 8
    want = gradients(cast(torch.Tensor, alone))
    for left in (0, 2):
        ids = torch.stack([texts[0][0], F.pad(texts[1][0], (left, 2 - left), value=2)])
        mask = torch.stack([torch.ones(5), F.pad(torch.ones(3), (left, 2 - left))])
        loss = model(ids, labels=ids, attention_mask=mask).loss
        torch.testing.assert_close(loss, alone, atol=1e-5, rtol=0)
        for a, b in zip(gradients(loss), want, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_masks_that_are_no_padding_and_unknown_arguments_are_refused(unchecked: None) -> None:
    model, tokens = case_of("random", 4, 1).model, torch.zeros(1, 4).long()
    for mask in ([[1, 0, 1, 1]], [[0, 1, 1, 0]]):
        with pytest.raises(ArmdError, match="both sides or between"):
            model(tokens, attention_mask=torch.tensor(mask))
    with pytest.raises(ArmdError, match="does not fit"):
        model(tokens, attention_mask=torch.ones(1, 3))
    for name, value in (("position_ids", tokens), ("use_cache", True), ("blocks", 3)):
        with pytest.raises(ArmdError, match=name):
            model(tokens, **{name: value})
    model(tokens, return_dict=True, use_cache=False, position_ids=None)  # these ask for nothing


@pytest.mark.parametrize("query", QUERIES)
def test_causal_logits_are_for_the_next_token(query: str) -> None:
    """As of every causal model: logits at i are those of token i + 1, padded or not, and the loss
    leaves the first token out. transformers' own generate writes the same text."""
    ours, model = case_of("random", N, 6, query=query).model, causal(query)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    plain, logits = ours(tokens).logits, model(tokens).logits
    torch.testing.assert_close(logits[:, :-1], plain[:, 1:], atol=1e-5, rtol=0)
    loss = F.cross_entropy(plain[0, 1:], tokens[0, 1:])
    torch.testing.assert_close(model(tokens, labels=tokens).loss, loss, atol=1e-5, rtol=0)
    for left in (0, 2):
        ids = F.pad(tokens, (left, 2 - left), value=3)
        mask = F.pad(torch.ones_like(tokens), (left, 2 - left))
        got = model(ids, attention_mask=mask).logits[:, left : left + 6]
        torch.testing.assert_close(got, logits, atol=1e-5, rtol=0)
        padded_loss = model(ids, attention_mask=mask, labels=ids).loss  # padding is not scored
        torch.testing.assert_close(padded_loss, loss, atol=1e-5, rtol=0)
    made = model.generate(tokens, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(cast(torch.Tensor, made), ours.generate(tokens, max_new_tokens=5))


def causal(query: str, seed: int = 6, **size: Any) -> Any:
    ours = case_of("random", N, seed, query=query, **size).model
    model = ArmdForCausalLM(ours.config).eval()
    model.load_state_dict(ours.state_dict())
    return model


@pytest.mark.parametrize("query", ["neighbor", "shift"])
def test_the_causal_class_with_a_cache_is_the_same_model(query: str) -> None:
    """Logits of a text read in pieces, padded or not, are those of one pass; so are beams, and
    what another model drafts changes nothing."""
    model = causal(query, n_kv_heads=1)
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 6, 2, 1], [3, 3, 3, 1, 5, 4, 4, 1, 2]])
    mask = torch.tensor([[1] * 9, [0] * 3 + [1] * 6])
    with torch.no_grad():
        want = model(ids, attention_mask=mask).logits
        cache, parts = None, []
        for start, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
            part = model(ids[:, start:end], mask[:, :end], past_key_values=cache, use_cache=True)
            cache = part.past_key_values
            parts.append(part.logits)
    assert cast(Any, cache).get_seq_length() == 9
    torch.testing.assert_close(torch.cat(parts, 1)[mask != 0], want[mask != 0], atol=1e-5, rtol=0)
    options: Any = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 99}
    for more in ({}, {"num_beams": 3}):
        made = model.generate(ids, attention_mask=mask, **options, **more)
        slow = model.generate(ids, attention_mask=mask, use_cache=False, **options, **more)
        assert torch.equal(cast(torch.Tensor, made), cast(torch.Tensor, slow))
        place = mask.cumsum(1) - 1
        said = model.generate(ids, attention_mask=mask, position_ids=place, **options, **more)
        assert torch.equal(cast(torch.Tensor, made), cast(torch.Tensor, said))
    drafted = model.generate(ids[:1], assistant_model=causal(query, seed=7), **options)
    assert torch.equal(cast(Any, drafted), cast(Any, model.generate(ids[:1], **options)))
    with pytest.raises(ArmdError, match="cache_implementation"):
        model.generate(ids, cache_implementation="static", **options)
    parted = model.generate(ids[:1], prefill_chunk_size=4, **options)
    assert torch.equal(cast(Any, parted), cast(Any, model.generate(ids[:1], **options)))
    with pytest.raises(ArmdError, match="has no cache"):
        causal("prefix")(ids, use_cache=True)
    for name, value in (("prefill_chunk_size", 4), ("assistant_model", model)):
        with pytest.raises(ArmdError, match=f"{name} needs a cache"):
            causal("prefix").generate(ids[:1], **{name: value}, **options)


@pytest.mark.usefixtures("unchecked")  # it is no ArmdLM, but behaves like one
@pytest.mark.parametrize("query", ["prefix", "neighbor"])
def test_a_model_that_peft_has_wrapped_writes_with_its_adapter(query: str) -> None:
    peft = pytest.importorskip("peft")
    inner = case_of("random", N, 6, query=query).model
    before = armd.generate(inner, length=12, streams=2, temperature=0.0)
    settings = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    wrapped = peft.get_peft_model(inner, settings).eval()
    made = armd.generate(wrapped, length=12, streams=2, temperature=0.0)
    assert torch.equal(made, armd.generate(inner, length=12, streams=2, temperature=0.0))
    assert not torch.equal(made, before)


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("query", ["prefix", "mean", "neighbor", "neighbor, biased", "shift"])
def test_the_carried_code_writes_the_same_greedy_text_as_armd(query: str, streams: int) -> None:
    apart = {"right_bias": True, "right_offset": 8, "n_kv_heads": 1, "adapter_rank": 2}
    size = apart if "biased" in query else {"n_two_stream": 2}
    model = case_of("random", 5, 3, query=query.split(",")[0], **size).model
    if query == "shift" and streams > 1:
        with pytest.raises(ArmdError, match="left_to_right"):
            model.generate(max_new_tokens=6, streams=streams)
        return
    for given in (0, 3):
        prompt = torch.randint(7, (2, given), generator=torch.Generator().manual_seed(given))
        want = armd.generate(model, length=12, prompt=prompt, streams=streams, temperature=0.0)
        assert torch.equal(model.generate(prompt, max_new_tokens=12 - given, streams=streams), want)
    left = F.pad(prompt[:1], (2, 0))
    both = torch.cat([left, torch.tensor([[1, 2, 3, 4, 5]])])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    made = model.generate(both, mask, max_new_tokens=9, streams=streams)
    assert torch.equal(made[0, 2:], want[0])
    if query != "shift":
        known = torch.tensor([True, False, False, True, True, False, True, False])
        text = torch.arange(8)[None] % 7
        want = armd.infill(model, text, known, streams=streams, temperature=0.0)
        assert torch.equal(model.infill(text, known, streams=streams), want)


def test_the_carried_code_ends_at_eos_and_samples_what_the_model_says() -> None:
    model = case_of("random", 5, 3, query="neighbor").model
    for eos in range(7):
        options = {"length": 16, "streams": 2, "temperature": 0.0, "eos": eos}
        want = armd.generate(model, prompt=[[1, 2]], **options)
        made = model.generate(
            torch.tensor([[1, 2]]), max_new_tokens=14, streams=2, eos_token_id=eos
        )
        assert torch.equal(made, want)
        several = model.generate(
            torch.tensor([[1, 2]]), max_new_tokens=14, streams=2, eos_token_id=[eos, 99]
        )
        assert torch.equal(several, want)
    draws = model.generate(
        torch.zeros(4000, 1).long(),
        max_new_tokens=1,
        do_sample=True,
        generator=torch.Generator().manual_seed(0),
    )[:, 1]
    with torch.no_grad():
        exact = model(torch.zeros(1, 2).long()).logits[0, 1].softmax(0)
    found = torch.bincount(draws, minlength=7) / 4000
    assert float((found - exact).abs().max()) < 4 * (0.25 / 4000) ** 0.5


@pytest.mark.parametrize("tied", [True, False])
def test_the_vocabulary_can_grow(tied: bool) -> None:
    model = case_of("random", 5, 1, tie_word_embeddings=tied).model
    tokens = torch.tensor([[1, 2, 3]])
    before = model(tokens).logits.detach()
    model.resize_token_embeddings(9)
    assert model.config.vocab_size == 9 == model(tokens).logits.shape[-1]
    torch.testing.assert_close(model(tokens).logits[..., :7], before)
    model(torch.tensor([[8, 0]]), labels=torch.tensor([[8, 0]])).loss.backward()


def test_a_run_folder_is_loaded_by_its_own_name(tmp_path: Path) -> None:
    model = case_of("random", 5, 1).model
    model.save_pretrained(tmp_path / "run" / "export")
    (tmp_path / "run" / "config.json").write_text("{}")  # a run's is its recipe
    again = armd.ArmdLM.from_pretrained(tmp_path / "run")
    assert torch.equal(again.bos, model.bos)


def test_an_export_writes_without_armd(tmp_path: Path, unchecked: None) -> None:
    """Text in, text out, with transformers alone; the card's own lines among them."""
    model = case_of("random", 5, 1, query="neighbor", vocab_size=257).model
    with_ends(byte_tokenizer(), rows=False).save(tmp_path / "tokenizer")
    facts: Any = {"about": {"data": "words"}, "losses": {"left to right": 1.5, "S=2": 2.0}}
    files = read_plain_files(tmp_path / "tokenizer")
    export(cast(Any, Held(model)), model.config, files, tmp_path / "m", **facts)
    card = (tmp_path / "m" / "README.md").read_text()
    for told in ("| data | words |", "| S=2 | 2.000 | 7.39 |", "streams=4", f"{257 * 16:,}"[:1]):
        assert told in card
    lines = card.split("```python\n")[1].split("```")[0].replace("FOLDER", "'m'")
    (tmp_path / "card.py").write_text(lines)
    want = armd.generate(model, length=12, prompt=[[72, 105]], streams=4, temperature=0.0, eos=256)
    script = f"""
        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("armd", "jaxtyping", "beartype"):
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        sys.meta_path.insert(0, Missing())
        import torch
        exec(open("card.py").read())
        assert tokenizer.pad_token_id == tokenizer.eos_token_id == 256 == model.config.pad_token_id
        batch = tokenizer(["Hi", "longer"], return_tensors="pt", padding=True)
        assert set(batch) == {{"input_ids", "attention_mask"}}, batch
        model(**batch)
        made = model.generate(tokenizer("Hi", return_tensors="pt").input_ids, max_new_tokens=10,
            streams=4)
        assert made.tolist() == {want.tolist()}, made
        from transformers import AutoModelForCausalLM, pipeline
        causal = AutoModelForCausalLM.from_pretrained("m", trust_remote_code=True)
        assert causal.generation_config.eos_token_id == 256
        write = pipeline("text-generation", model=causal, tokenizer=tokenizer)
        text = write("Hi", max_new_tokens=4, do_sample=False)[0]["generated_text"]
        assert text == tokenizer.decode(model.generate(torch.tensor([[72, 105]]),
            max_new_tokens=4)[0], skip_special_tokens=True), text
        try:
            pipeline("fill-mask", model=model, tokenizer=tokenizer)("Hi")
        except Exception as error:
            assert "mask_token" in str(error), error
        else:
            raise AssertionError("there is no mask token")
        print("written")
    """
    assert "written" in run_alone(script, tmp_path)
