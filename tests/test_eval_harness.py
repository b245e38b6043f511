"""The lm-eval harness measures what we measure, through its own extension point, offline."""

import ast
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from eval_models import corpus, loaded, saved, tiny_armd, tokenizer

import armd
from armd.errors import ArmdError
from armd.eval.perplexity import Scoring, perplexity
from armd.eval.windows import PROTOCOLS

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'armd[eval]'")
pytestmark = pytest.mark.usefixtures("unchecked")

DOCUMENTS = ["Some words of a text.", "x", "a longer text, which goes on and on " * 4]
ANSWERS = [("The sky is", " blue"), ("", "no context"), ("with spaces  ", "here"), ("a", "b" * 90)]
TASK = """
task: own_text
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: bits_per_byte
"""


@pytest.fixture
def harness(tmp_path):
    from armd.eval.harness import ArmdHarness

    return ArmdHarness(pretrained=saved(tiny_armd(), tmp_path / "model"), device="cpu")


def requests(*arguments):
    return [SimpleNamespace(args=args) for args in arguments]


def chain(model, ids: list[int], scored: int) -> tuple[float, bool]:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    places = range(len(ids) - scored, len(ids))
    greedy = all(int(logits[at].argmax()) == ids[at] for at in places)
    return sum(logits[at, ids[at]].item() for at in places), greedy


def test_loglikelihood_is_the_chain_rule(harness):
    found = harness.loglikelihood(requests(*ANSWERS))
    for (context, answer), (value, greedy) in zip(ANSWERS, found, strict=True):
        ids = tokenizer().backend.encode(context + answer).ids[-64:]
        scored = min(64, len(answer) + len(context) - len(context.rstrip()))
        expected, by_hand = chain(harness.loaded.model, ids, scored)
        assert value == pytest.approx(expected, rel=1e-5)
        assert greedy == by_hand


def test_weights_that_are_no_numbers_answer_no_question(harness):
    with torch.no_grad():
        next(harness.loaded.model.parameters()).fill_(math.nan)
    with pytest.raises(armd.ArmdError, match="no numbers"):
        harness.loglikelihood(requests(("ab", "c"), ("ab", "d")), disable_tqdm=True)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ({}, {"batch_size": "abc"}, "--batch_size abc must be"),
        ({}, {"batch_size": -1}, "--batch_size -1 must be"),
        ({}, {"batch_size": 0}, "--batch_size 0 must be"),
        ({"batch_size": 4}, {"batch_size": 1}, "give it as --batch_size"),
        ({"foo": 1}, {"batch_size": 1}, "no 'foo' in --model_args"),
        ({"streams": "x"}, {"batch_size": 1}, "streams x must be"),
        ({"pretrained": ""}, {}, "pretrained=FOLDER"),
    ],
)
def test_what_is_no_setting_is_said_in_a_line(given, options, said):
    from armd.eval.harness import ArmdHarness

    with pytest.raises(armd.ArmdError, match=said):
        ArmdHarness.create_from_arg_obj({"pretrained": "none", **given}, options)


def test_lm_evals_own_hf_model_scores_a_saved_folder_alike(harness):
    """With the code that the folder carries; 0.4.13 knows no models of other packages."""
    from lm_eval.models.huggingface import HFLM

    asked = [(context.strip(), answer) for context, answer in ANSWERS[:3] if context]
    theirs = HFLM(pretrained=str(harness.loaded.name), trust_remote_code=True, device="cpu")
    found = theirs.loglikelihood(requests(*asked), disable_tqdm=True)
    ours = harness.loglikelihood(requests(*asked), disable_tqdm=True)
    for (value, greedy), (expected, same) in zip(found, ours, strict=True):
        assert value == pytest.approx(expected, rel=1e-5) and greedy == same


def test_rolling_scores_every_token_once_with_full_context(harness):
    ids = tokenizer().backend.encode(DOCUMENTS[2]).ids
    assert 128 < len(ids) < 192
    model, rest = harness.loaded.model, len(ids) % 64
    expected = sum(chain(model, ids[s : s + 64], 64)[0] for s in (0, 64))
    expected += chain(model, ids[-64:], rest)[0]
    (found,) = harness.loglikelihood_rolling(requests((DOCUMENTS[2],)))
    assert found == pytest.approx(expected, rel=1e-5)


def test_rolling_equals_our_own_perplexity_on_short_rows(harness):
    texts = [text for text in DOCUMENTS if len(text) < 60]
    values = harness.loglikelihood_rolling(requests(*((text,) for text in texts)))
    # ours counts an EOS after each row; take its share away by scoring the rows without it
    own = loaded(tiny_armd())
    ours = perplexity(own, corpus(texts), PROTOCOLS["rows"], Scoring(), window=64)
    ends = sum(
        chain(own.model, [*tokenizer().backend.encode(text).ids, tokenizer().eos], 1)[0]
        for text in texts
    )
    assert -ours["nats_per_token"] * ours["tokens_scored"] == pytest.approx(
        sum(values) + ends, rel=1e-5
    )


def test_generation_is_greedy_and_stops(harness):
    options = {"until": [], "max_gen_toks": 12}
    (whole,) = harness.generate_until(requests(("Once", options)))
    prompt = torch.tensor([tokenizer().backend.encode("Once").ids])
    ids = armd.generate(
        harness.loaded.model, length=16, prompt=prompt, temperature=0.0, eos=tokenizer().eos
    )[0, 4:].tolist()
    ids = ids[: ids.index(tokenizer().eos)] if tokenizer().eos in ids else ids
    assert whole == tokenizer().backend.decode(ids, skip_special_tokens=False)
    if len(whole) > 2:
        stop = whole[2]
        (cut,) = harness.generate_until(requests(("Once", options | {"until": [stop]})))
        assert cut == whole[: whole.index(stop)]


def test_a_context_is_cut_after_the_answer_and_told(harness, monkeypatch, capsys):
    """lm_eval asks for 256 tokens by default: of a question, its last one would be left."""
    monkeypatch.setattr(harness, "told", False)
    room = harness.longest
    assert harness._fitted([1] * 9, 256) == ([1] * 9, room - 9)
    assert harness._fitted([1] * 3, 2) == ([1] * 3, 2)
    assert "cut" not in capsys.readouterr().err
    ids = list(range(2 * room))
    for _ in range(2):
        assert harness._fitted(ids, 256) == (ids[-(room - room // 2) :], room // 2)
    assert capsys.readouterr().err.count("contexts are cut") == 1


def test_a_question_that_is_cut_is_told(harness, capsys):
    (found,) = harness.loglikelihood(requests(("a" * 3 * harness.longest, "bc")))
    (short,) = harness.loglikelihood(requests(("a" * (harness.longest - 2), "bc")))
    assert found == pytest.approx(short)
    assert capsys.readouterr().err.count("are cut to their last") == 1


def test_a_continuation_that_ends_a_word_of_its_context_is_scored():
    """A tokenizer that has a token for both together, and one for each."""
    from armd.eval.harness import ArmdHarness

    words = re.compile("lighthouse|light|house|.")
    ids = {"lighthouse": 2, "light": 1, "house": 3}
    self = SimpleNamespace(longest=8, loaded=SimpleNamespace())
    self.loaded.encode = lambda texts: [
        [ids.get(word, ord(word[0])) for word in words.findall(text)] for text in texts
    ]
    joined = ArmdHarness._joined(self, "light", "house")  # type: ignore[arg-type]
    assert joined == ([1, 3], 1)
    assert ArmdHarness._joined(self, "a", "house") == ([97, 3], 1)  # type: ignore[arg-type]
    assert ArmdHarness._joined(self, "light", "") == ([1], 0)  # type: ignore[arg-type]


def test_chat_templates_are_refused_in_a_line(harness):
    with pytest.raises(ArmdError, match="leave out --apply_chat_template"):
        harness.apply_chat_template([{"role": "user", "content": "a"}])


def test_a_cache_of_answers_is_of_its_model_alone(harness, tmp_path, monkeypatch):
    """And holds no pickles: it may be anybody's."""
    from lm_eval.api.model import CachingLM

    from armd.eval.harness import ArmdHarness

    asked, file, wholes = requests(*ANSWERS), str(tmp_path / "cache.db"), []
    path = saved(tiny_armd(n_layers=4), tmp_path / "other")
    other = ArmdHarness(pretrained=path, device="cpu")
    for model in (harness, other):
        whole = model.loglikelihood(asked)
        wholes.append(whole)
        assert CachingLM(model, file).loglikelihood(asked) == whole
        again = ArmdHarness(pretrained=model.loaded.name, device="cpu")
        with monkeypatch.context() as patch:
            patch.setattr(again, "_scored", None)  # all of it is there
            patch.setattr("pickle.loads", None)
            patch.setattr("sqlitedict.loads", None)
            assert CachingLM(again, file).loglikelihood(asked) == whole
    assert wholes[0] != wholes[1]


def test_a_model_that_is_named_is_ours_unless_it_is_said():
    from armd.eval.harness_command import names_model

    ours = ["--model_args", "pretrained=runs/a", "--tasks", "piqa"]
    assert not names_model(ours) and not names_model(["run", "-a", "pretrained=x"])
    for other in (["ls", "tasks"], [*ours, "--model=hf"], ["-M", "hf", "-a", "x"], ["-C", "f"]):
        assert names_model(other)


def test_a_local_task_gives_our_bits_per_byte(tmp_path):
    model = saved(tiny_armd(), tmp_path / "model")
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[:2]))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "own.yaml").write_text(TASK.format(file=texts))
    words = ["--model", "armd", "--model_args", f"pretrained={model}"]
    words += ["--tasks", "own_text", "--include_path", str(tmp_path / "tasks")]
    done = subprocess.run(
        [sys.executable, "-m", "armd.eval.harness", *words, "--output_path", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = (tmp_path / "out").rglob("results*.json")
    found = json.loads(file.read_text())["results"]["own_text"]["bits_per_byte,none"]
    own = tiny_armd()
    total = sum(
        chain(own, ids, len(ids))[0]
        for ids in (tokenizer().backend.encode(text).ids for text in DOCUMENTS[:2])
    )
    size = sum(len(text.encode()) for text in DOCUMENTS[:2])
    assert found == pytest.approx(-total / math.log(2) / size, rel=1e-5)


def test_local_completions_gets_the_same_from_a_server(tmp_path):
    """lm_eval's own client of completions, over HTTP: the same log-likelihoods, the same greedy."""
    pytest.importorskip(
        "tenacity", reason="lm-eval[api] is not installed: pip install 'armd[eval]'"
    )
    pytest.importorskip("fastapi", reason="no server: pip install 'armd[serve]'")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from serving import running, writer

    folder = saved(tiny_armd(vocab_size=257), tmp_path / "model")
    model = tiny_armd(vocab_size=257, d_model=32, n_layers=2)
    asked = [("The sky is", " blue"), ("a", "b" * 20), ("Once upon", " a")]
    with running(writer()) as server:
        api = LocalCompletionsAPI(
            model="tiny",
            base_url=f"{server.url}/v1/completions",
            tokenizer=folder,
            max_length=64,
            num_concurrent=1,
        )
        instances = [Instance("loglikelihood", {}, args, 0) for args in asked]
        found = api.loglikelihood(instances, disable_tqdm=True)
    for (context, answer), (value, greedy) in zip(asked, found, strict=True):
        ids = tokenizer().backend.encode(context + answer).ids
        expected, by_hand = chain(model, ids, len(answer))
        assert value == pytest.approx(expected, abs=1e-4) and greedy == by_hand


def test_hellaswag_from_a_file_asks_what_lm_evals_own_task_asks():
    """`examples/hellaswag.yaml` against the code that it stands in for, on text with its marks."""
    import yaml
    from datasets import Dataset
    from lm_eval.tasks.hellaswag.utils import process_docs
    from lm_eval.utils import apply_template

    task = yaml.safe_load((Path(armd.__file__).parents[1] / "examples/hellaswag.yaml").read_text())
    endings = ['[substeps] It\'s "fine". [title] Next [step] go.', "b [x] c", "  d  e", "[title]"]
    given = {
        "activity_label": "Cooking",
        "ctx_a": "[header] How to [title] Wash.  Dry.",
        "label": 2,
    }
    rows = [{**given, "ctx_b": part, "endings": endings} for part in ("", "the Man [step] then")]
    for row, own in zip(rows, process_docs(Dataset.from_list(rows)), strict=True):
        assert apply_template(task["doc_to_text"], row) == own["query"]
        assert ast.literal_eval(apply_template(task["doc_to_choice"], row)) == own["choices"]
        assert int(apply_template(task["doc_to_target"], row)) == own["gold"]
