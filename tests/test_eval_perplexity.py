"""Perplexity is what it says: against models whose answer is known, and a loop over logits."""

import json
import math
import os

import pytest
import torch
from eval_models import (
    TEXTS,
    VOCABULARY,
    Known,
    corpus,
    loaded,
    saved,
    stub,
    tiny_armd,
    tiny_gpt2,
    tokenizer,
)
from forked import Forked
from tokenizers.normalizers import Lowercase
from training_help import ranks

from armd.bench.eval import bench_eval
from armd.data.tokenizer import byte_tokenizer, with_ends
from armd.errors import ArmdError
from armd.eval.perplexity import Scoring, perplexity
from armd.eval.ppl import eval_ppl, other_tokenizer, shown, used
from armd.eval.scorer import CausalScorer
from armd.eval.windows import PROTOCOLS

LONG = [*TEXTS * 4]
ORDERS = ("left-to-right", "random", "strided", "masking")


def score(model, protocol="exact", *, texts=LONG, window=16, **scoring):
    return perplexity(model, corpus(texts), PROTOCOLS[protocol], Scoring(**scoring), window=window)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("order", [*ORDERS, "shuffled"])
def test_uniform_is_v_and_all_knowing_is_1(protocol, order):
    uniform = score(stub(Known(-math.log(VOCABULARY))), protocol, order=order, draws=2)
    knowing = score(stub(Known(0.0)), protocol, order=order, draws=2)
    assert uniform["perplexity"] == pytest.approx(VOCABULARY, abs=1e-6)
    assert knowing["perplexity"] == pytest.approx(1.0, abs=1e-6)


def test_a_uniform_model_of_ours_is_v():
    model = tiny_armd()
    torch.nn.init.zeros_(model.embedding.weight)
    for protocol in PROTOCOLS:
        found = score(loaded(model), protocol)["perplexity"]
        assert found == pytest.approx(VOCABULARY, rel=1e-6)


def stream(texts=LONG) -> list[int]:
    own = tokenizer()
    encoded = own.backend.encode_batch(texts, add_special_tokens=False)
    return [token for e in encoded for token in [*e.ids, own.eos]]


def test_a_causal_lm_equals_a_loop_over_its_logits():
    model, window = tiny_gpt2(), 16
    eos, tokens = tokenizer().eos, stream()
    nll = count = 0.0
    for start in range(0, len(tokens), window):
        part = tokens[start : start + window]
        for at in range(len(part)):
            with torch.no_grad():
                logits = model(torch.tensor([[eos, *part[:at]]])).logits[0, -1]
            nll -= logits.double().log_softmax(0)[part[at]].item()
            count += 1
    found = score(loaded(model), window=window)
    assert found["tokens_scored"] == count == len(tokens)
    assert found["nats_per_token"] == pytest.approx(nll / count, rel=1e-5)


def test_a_causal_lm_sees_one_bos_under_mdlm():
    model, window = tiny_gpt2(), 16
    eos, tokens = tokenizer().eos, stream()
    nll = count = 0.0
    for start in range(0, len(tokens) - 13, 14):
        part = torch.tensor([[eos, *tokens[start : start + 14], eos]])
        with torch.no_grad():
            nll += model(part, labels=part).loss.item() * 15
        count += 15
    found = score(loaded(model), "mdlm", window=window)
    assert found["tokens_scored"] == count
    assert found["nats_per_token"] == pytest.approx(nll / count, rel=1e-5)


def test_first_tokens_are_counted_as_each_protocol_says():
    ours, theirs = loaded(tiny_armd()), loaded(tiny_gpt2())
    for model, protocol, counted in [
        (ours, "sedd", 16),
        (ours, "mdlm", 16),
        (ours, "bd3lm", 15),
        (theirs, "sedd", 16),
        (theirs, "mdlm", 15),
        (theirs, "bd3lm", 15),
    ]:
        found = score(model, protocol)
        assert found["tokens_scored"] == counted * found["windows"]


def test_lm1b_is_given_with_and_without_counting_cls():
    for protocol in ("lm1b", "lm1b-packed"):
        found = score(stub(Known(-1.0)), protocol)
        counted, windows = found["tokens_scored"], found["windows"]
        assert found["perplexity"] == pytest.approx(math.e)
        free = math.exp(counted / (counted + windows))
        assert found["perplexity_counting_bos"] == pytest.approx(free)
        assert "--tokenizer bert-base-uncased" in other_tokenizer(PROTOCOLS[protocol], VOCABULARY)
        assert other_tokenizer(PROTOCOLS[protocol], 30_522) == ""
    assert counted == 15 * windows  # packed: CLS is neither scored nor counted
    assert other_tokenizer(PROTOCOLS["sedd"], VOCABULARY) == ""


def test_one_pass_equals_the_chain_rule_token_by_token():
    model, window = tiny_armd(), 8
    tokens = stream(TEXTS)
    nll = 0.0
    for start in range(0, len(tokens), window):
        part = torch.tensor([tokens[start : start + window]])
        for at in range(part.shape[1]):
            shorter = part[:, : at + 1]
            with torch.no_grad():
                nll -= model(shorter).logits[0, at].double().log_softmax(0)[part[0, at]].item()
    found = score(loaded(model), texts=TEXTS, window=window)
    assert found["nats_per_token"] == pytest.approx(nll / len(tokens), rel=1e-5)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("protocol", ["exact", "rows", "mdlm"])
def test_batch_1_equals_batch_8(order, protocol):
    # rows of unequal length: batch 8 is padded, batch 1 is not
    model = loaded(tiny_armd())
    one, eight = (
        score(model, protocol, order=order, draws=3, steps=4, batch=batch) for batch in (1, 8)
    )
    for name in ("nats_per_token", "bits_per_byte", "tokens_scored", "windows"):
        assert one[name] == pytest.approx(eight[name], rel=2e-6)


def test_a_causal_lm_padded_equals_unpadded():
    model = loaded(tiny_gpt2())
    one, eight = (score(model, "rows", batch=batch)["nats_per_token"] for batch in (1, 8))
    assert one == pytest.approx(eight, rel=2e-6)


def test_a_head_in_chunks_equals_all_logits_and_a_head_that_does_more_is_left_whole():
    model, tokens = tiny_gpt2(), torch.arange(40).view(2, 20)
    scorer = CausalScorer(model, 3)
    assert scorer.head is model.lm_head.weight
    with torch.no_grad():
        chunked = scorer.log_probs(tokens, None, 1)
        logits = model(tokens[:, :-1]).logits.log_softmax(-1)
    whole = logits.gather(2, tokens[:, 1:, None]).squeeze(2)
    assert torch.allclose(chunked[:, 1:], whole, atol=1e-5)
    plain = model.forward

    def capped(*args, **options):
        made = plain(*args, **options)
        made.logits = 5 * torch.tanh(made.logits / 5)
        return made

    model.forward = capped
    scorer = CausalScorer(model, 3)
    assert scorer.head is None
    with torch.no_grad():
        found = scorer.log_probs(tokens, None, 1)
        logits = model(tokens[:, :-1]).logits.log_softmax(-1)
    assert torch.allclose(found[:, 1:], logits.gather(2, tokens[:, 1:, None]).squeeze(2), atol=1e-5)
    assert not torch.allclose(found, chunked, atol=1e-2)


def test_every_token_is_scored_once_whatever_window_and_batch():
    total = len(stream())
    for window in (1, 2, 7, 64):
        for batch in (1, 5):
            found = score(stub(Known(-1.0)), window=window, batch=batch)
            assert found["tokens_scored"] == total and found["tokens_dropped"] == 0


def test_draws_have_an_error_and_a_tighter_bound():
    found = score(loaded(tiny_armd()), order="random", draws=8)
    assert found["bound"] and found["perplexity_standard_error"] > 0
    assert found["perplexity_log_mean_exp"] <= found["perplexity"]
    other = score(loaded(tiny_armd()), order="random", draws=8, seed=1)
    gap = abs(found["nats_per_token"] - other["nats_per_token"])
    assert 0 < gap < 5 * math.hypot(found["nats_standard_error"], other["nats_standard_error"])


def test_shuffled_orders_score_the_training_distribution():
    model = loaded(tiny_armd())
    plain = score(model)["nats_per_token"]
    assert score(model, order="shuffled", rho=1, shuffle="among")["nats_per_token"] == plain
    assert score(model, order="shuffled", rho=1)["nats_per_token"] != plain
    with pytest.raises(ArmdError, match="--rho 0"):
        score(model, order="shuffled", rho=0)


def test_bits_per_byte_are_of_the_text():
    found = score(stub(Known(-math.log(2.0))))
    tokens, text = len(stream()), sum(len(text.encode()) for text in LONG)
    assert found["bits_per_byte"] == pytest.approx(tokens / text)


def test_short_text_and_unfit_orders_say_so():
    with pytest.raises(ArmdError, match="holds no text"):  # its EOS would have a perplexity
        score(loaded(tiny_armd()), texts=[""])
    with pytest.raises(ArmdError, match="fewer than a window"):
        score(loaded(tiny_armd()), "sedd", texts=["short"])
    with pytest.raises(ArmdError, match="autoregressive"):
        score(loaded(tiny_gpt2()), order="random")
    with pytest.raises(ArmdError, match="lower --window"):
        score(loaded(tiny_armd()), window=65)


def test_results_are_kept_and_not_redone(tmp_path, capsys, unchecked):
    model = saved(tiny_armd(), tmp_path / "model")
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("some words of text\n" * 9)
    file = tmp_path / "out.json"
    data = f"lm1b={tmp_path / 'a.txt'}"
    (first,) = eval_ppl(model, data=data, json=file)
    both = eval_ppl(model, data=f"{data},b={tmp_path / 'b.txt'}", json=file)
    assert both[0] == first
    assert len(json.loads(file.read_text())["results"]) == 2
    lower = with_ends(byte_tokenizer(), rows=False)
    lower.backend.normalizer = Lowercase()
    lower.save(tmp_path / "tokenizer")
    (else_read,) = eval_ppl(model, data=data, json=file, tokenizer=str(tmp_path / "tokenizer"))
    assert else_read["settings"]["tokenizer"] != first["settings"]["tokenizer"]
    (other,) = eval_ppl(model, data=data, json=file, scoring=Scoring(order="strided"))
    assert other["perplexity"] != first["perplexity"]
    assert len(json.loads(file.read_text())["results"]) == 4
    assert "order strided (streams 4)" in capsys.readouterr().out


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path, unchecked):
    text = tmp_path / "text.txt"
    text.write_text("words")
    small = saved(tiny_armd(vocab_size=100), tmp_path / "small")
    with pytest.raises(ArmdError, match="knows 100"):
        eval_ppl(small, data=str(text))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "small" / file).unlink()
    with pytest.raises(ArmdError, match="--tokenizer"):
        eval_ppl(small, data=str(text))
    with pytest.raises(ArmdError, match="no model in"):
        eval_ppl(str(tmp_path), data=str(text))


@pytest.mark.parametrize("figure, mark", [("bound", "<="), ("pseudo-likelihood", "~")])
def test_what_is_no_likelihood_is_marked(figure, mark):
    scorer = Known(-1.0, figure=figure)
    found = score(stub(scorer))
    assert found["bound"] == (figure == "bound") != found["pseudo_likelihood"]
    settings = {"model": "bounded", "protocol": "exact", "window": 16, **used(Scoring(), True)}
    result = found | {"settings": settings, "row_ends": "EOS after every row"}
    said = shown([result], PROTOCOLS["exact"], Scoring(), 16, scorer)
    assert f"{mark}2.718" in said and figure in said and "one draw has no standard error" in said


def test_the_bench_times_the_same_tokens_on_both_sides(tmp_path, unchecked):
    model = saved(tiny_armd(), tmp_path / "model")
    (tmp_path / "text.txt").write_text("some words of text\n" * 400)
    cost = bench_eval(
        model, data=str(tmp_path / "text.txt"), windows=4, batch=2, repeats=2, device="cpu"
    )
    assert cost.tokens == 4 * 64 and cost.share > 0 and cost.eval <= cost.eval_median


def test_one_process_equals_two(tmp_path, unchecked):
    model = saved(tiny_armd(), tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(LONG * 3))
    data, file = f"lm1b={tmp_path / 'text.txt'}", tmp_path / "two.json"
    scoring = Scoring(order="random", draws=2)
    (one,) = eval_ppl(model, data=data, protocol="mdlm", scoring=scoring, window=32, device="cpu")
    words = ["eval", "ppl", model, "--data", data, "--protocol", "mdlm", "--order", "random"]
    words += ["--draws", "2", "--window", "32", "--device", "cpu", "--json", str(file)]
    processes = [Forked(words, env=os.environ | rank) for rank in ranks(2)]
    assert [process.wait() for process in processes] == [0, 0]
    (two,) = json.loads(file.read_text())["results"]
    for name in ("perplexity", "nats_standard_error", "tokens_scored", "windows", "tokens_dropped"):
        assert one[name] == pytest.approx(two[name], rel=2e-6)
