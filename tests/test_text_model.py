"""armd.load: text in, text out, the same as the functions on tokens say."""

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from small import case_of

import armd
from armd.data.tokenizer import byte_tokenizer, with_ends
from armd.errors import ArmdError
from armd.native.checksum import checksum
from armd.native.packed import FastLM, pack


@pytest.fixture
def loaded(tmp_path: Path):
    model = case_of("random", 5, 1, query="neighbor", vocab_size=257).model
    with_ends(byte_tokenizer(), rows=False).save(tmp_path / "export")
    model.save_pretrained(tmp_path / "export")
    return armd.load(tmp_path)


def test_texts_go_in_and_come_out(loaded) -> None:
    assert loaded.decode(loaded.encode("déjà")) == "déjà"
    text = loaded.write("Once", streams=4, length=32, temperature=0.0)
    ids = armd.generate(
        loaded.model,
        length=32,
        prompt=[list(b"Once")],
        streams=4,
        temperature=0.0,
        eos=256,
    )[0].tolist()
    assert text == loaded.decode(ids[: ids.index(256)] if 256 in ids else ids)
    assert loaded.write("a", seed=3, length=20) == loaded.write("a", seed=3, length=20)


def test_blanks_are_filled_and_the_rest_stays(loaded) -> None:
    made = loaded.fill("The ____ jumped over ____.", lengths=(2, 3), seed=0, temperature=0.0)
    assert made.startswith("The") and " jumped over" in made and made.endswith(".")
    with pytest.raises(ArmdError, match="no blank"):
        loaded.fill("nothing to fill")


def test_scores_are_exact_in_every_order(loaded) -> None:
    tokens = torch.tensor([list(b"an order")])
    for name, options in (("left_to_right", {}), ("strided", {"streams": 3})):
        score = loaded.score("an order", order=name, **options)
        order = armd.order.named(name, 8, **options)
        exact = armd.log_likelihood(loaded.model, tokens, order).sum().item()
        assert score.total == pytest.approx(exact, abs=1e-5)
        assert len(score.logp) == 8 and score.perplexity > 1
    with pytest.raises(ArmdError, match="nothing to score"):
        loaded.score("")


def test_neither_a_home_nor_an_entry_in_passwd_is_needed(loaded) -> None:
    """As in a container that runs under a number of its own."""
    script = f"""
import pwd
def nobody(*_): raise KeyError("no entry")
pwd.getpwuid = pwd.getpwnam = nobody
import armd
from armd.convert.smollm2 import cache_folder
assert armd.load({str(loaded.folder)!r}).write("a", length=6)
assert cache_folder().is_dir()
"""
    hidden = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME", "ARMD_CACHE")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    here = str(Path(armd.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"PYTHONPATH": here, "JAXTYPING_DISABLE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("query", ["neighbor", "prefix"])
def test_a_model_that_was_trained_on_writes_with_all_of_its_new_weights(
    tmp_path: Path, query: str
) -> None:
    model = case_of("random", 5, 1, query=query, vocab_size=257).model
    with_ends(byte_tokenizer(), rows=False).save(tmp_path / "export")
    model.save_pretrained(tmp_path / "export")
    loaded = armd.load(tmp_path)
    before, ids = loaded.fast, torch.tensor([list(b"order")])
    assert loaded.fast is before
    optimizer = torch.optim.AdamW(loaded.model.parameters(), lr=0.1, fused=True)  # without a trace
    loaded.model(ids, labels=ids).loss.backward()
    optimizer.step()
    greedy = {"length": 5, "prompt": [[111]], "temperature": 0.0}
    for fast, same in ((loaded.fast, True), (before, False)):
        logp = [
            float(step.logp[0, 0])
            for step in armd.stream(fast, **greedy)
            if bool((step.position >= 1).all())
        ]
        text = armd.generate(loaded.model, **greedy)
        exact = armd.log_likelihood(loaded.model, text, armd.order.left_to_right(5))[0, 1:]
        assert torch.allclose(torch.tensor(logp), exact, atol=1e-3) == same


def test_a_model_in_training_is_scored_and_packed_without_dropout(tmp_path: Path) -> None:
    sizes = {"vocab_size": 257, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_length": 64}
    model = armd.ArmdLM(armd.ArmdConfig(**sizes, dropout=0.5))
    with_ends(byte_tokenizer(), rows=False).save(tmp_path / "export")
    model.save_pretrained(tmp_path / "export")
    loaded = armd.load(tmp_path)
    kind, exact = type(loaded.fast).__name__, loaded.score("order").total
    loaded.model.train()
    assert loaded.score("order").total == exact and loaded.model.training
    with torch.no_grad():
        loaded.model.bos.mul_(1.5)
    assert type(loaded.fast).__name__ == kind and loaded.model.training


@pytest.mark.parametrize("size", [1, 7, 8, 255, 256, 257, 1000])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_checksum_depends_on_every_bit_and_on_its_place(
    size: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where weights are only put elsewhere, such as rows of an embedding."""
    if not compiled:
        monkeypatch.setattr("armd.native.checksum.library", lambda: None)
    weight = torch.randn(size, generator=torch.Generator().manual_seed(size))
    bits = weight.view(torch.int32)
    seen = {checksum(weight), checksum(weight[: size - 1])}
    seen |= {checksum(weight.roll(k)) for k in range(1, size)}
    seen |= {checksum(-weight.flip(0))} if size > 1 else set()
    count = 2 + (size > 1) + size - 1
    for at in range(0, size, 1 + size // 50):
        for bit in range(32):
            bits[at] ^= 1 << bit if bit < 31 else -(1 << 31)
            seen.add(checksum(weight))
            bits[at] ^= 1 << bit if bit < 31 else -(1 << 31)
            count += 1
    assert len(seen) == count
    assert checksum(weight.view(torch.bfloat16)[::2]) == checksum(
        weight.view(torch.bfloat16)[::2].contiguous()
    )


def test_threads_that_write_after_a_change_write_the_same(loaded) -> None:
    whole = loaded.write("Once", seed=1, length=24)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            loaded.model.norm.weight.data = loaded.model.norm.weight.data.clone()
            with torch.no_grad():
                loaded.model.norm.weight.mul_(-1.0)
            texts = [pool.submit(loaded.write, "Once", seed=1, length=24) for _ in range(8)]
            assert len({text.result() for text in texts}) == 1
            with torch.no_grad():
                loaded.model.norm.weight.mul_(-1.0)
    assert loaded.write("Once", seed=1, length=24) == whole


def test_adapters_of_others_are_decoded_by_torch(loaded) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query", "out"], init_lora_weights=False)
    adapted = peft.inject_adapter_in_model(config, loaded.model)
    assert loaded.fast is adapted
    with pytest.raises(ArmdError, match="not merged"):
        pack(loaded.model, "q8")
    assert loaded.write("Once", seed=1, length=24)


def test_a_model_is_packed_inside_autocast_as_outside(loaded) -> None:
    with torch.autocast("cpu"), warnings.catch_warnings():
        warnings.simplefilter("error")
        again = armd.load(loaded.folder)
    assert isinstance(again.fast, FastLM) and again.fast.whole


def test_a_length_that_no_model_takes_is_refused_at_once(loaded) -> None:
    with pytest.raises(ArmdError, match="passes the model's"):
        loaded.write("a", length=10**9)


def test_a_text_that_is_no_unicode_is_refused_in_one_line(loaded, unchecked) -> None:
    """Half a surrogate pair comes out of JSON and file names, and no tokenizer reads it."""
    for verb in (loaded.write, loaded.fill, loaded.score):
        with pytest.raises(ArmdError, match="half a surrogate pair at character"):
            verb("a\ud800 __")
    with pytest.raises(ArmdError, match="not bytes"):
        loaded.write(b"Once")


def test_a_score_takes_an_order_of_ones_own(loaded, unchecked) -> None:
    strided = armd.order.strided(8, 3)
    for order in (strided, strided.rows(1)):
        score = loaded.score("an order", order=order)
        assert score == loaded.score("an order", order="strided", streams=3)
    for order, options, said in (
        (strided, {"streams": 3}, "leave out streams"),
        (armd.order.strided(7, 3), {}, "order is for 7 tokens"),
        (armd.order.stack([strided] * 2), {}, "2 rows does not fit 1"),
        (3, {}, "no order '3'"),
    ):
        with pytest.raises(ArmdError, match=said):
            loaded.score("an order", order=order, **options)


@pytest.mark.parametrize(
    ("order", "options", "said"),
    [
        ("strided", {}, "order 'strided' needs streams; give score.*streams=2"),
        ("shuffled", {"how": "move"}, "order 'shuffled' needs rho; give score.*rho="),
        ("masking", {}, "order 'masking' needs steps; give score.*steps="),
        ("left-to-right", {"streams": 4}, "takes no streams; leave it out, or .* 'strided'"),
        ("random", {"rho": 4}, "takes no rho; leave it out, or .* 'shuffled'"),
        ("strided", {"streams": 2, "step": 4}, "takes no step; leave it out$"),
    ],
)
def test_a_score_is_of_the_order_that_was_asked_for(loaded, order, options, said) -> None:
    """Not of left to right, which is what an order without its option comes to."""
    with pytest.raises(ArmdError, match=said):
        loaded.score("an order", order=order, **options)


def test_a_name_is_no_order_to_write_in(loaded, unchecked) -> None:
    for length in (5, 6):
        with pytest.raises(ArmdError, match=r"not str; .*armd\.order\.named"):
            loaded.write("a", length=length, order="random")


def test_a_copy_writes_the_same_and_learns_alone(loaded) -> None:
    copied, text = deepcopy(loaded), loaded.write("Once", seed=1, length=24)
    assert copied.write("Once", seed=1, length=24) == text
    with torch.no_grad():
        copied.model.norm.weight.mul_(-1.0)
    assert copied.write("Once", seed=1, length=24) != text
    assert loaded.write("Once", seed=1, length=24) == text
