"""Small models and texts for the evaluation tests."""

from dataclasses import dataclass
from pathlib import Path

import torch

import armd
from armd.data.tokenizer import byte_tokenizer, with_ends
from armd.eval.corpora import Corpus
from armd.eval.detokenize import plain
from armd.eval.load_model import Loaded

torch.set_num_threads(1)  # models this small only wait for each other's threads
VOCABULARY = 300
TEXTS = ["The quick brown fox.", "", "jumps over", "the lazy dog, again and again and again", "x"]


@dataclass
class Known:
    """A model that is uniform, or knows every text."""

    log_p: float
    vocab_size: int = VOCABULARY
    max_length: int = 1 << 20
    device = torch.device("cpu")
    any_order: bool = True
    figure: str = "exact"
    from_nothing: bool = True
    scores_first: bool = True

    @property
    def drawn(self):
        return self.figure != "exact"

    def log_probs(self, tokens, order, skip):
        return torch.full(tokens.shape, self.log_p, dtype=torch.float64)


def tokenizer():
    return with_ends(byte_tokenizer(), rows=False)


@dataclass(frozen=True)
class Stub(Loaded):
    """A loaded model with a scorer of our own."""

    def scorer(self):
        return self.model


def stub(known: Known) -> Stub:
    return Stub("stub", "stub", known, tokenizer(), "float32", "")


def corpus(texts: list[str] = TEXTS, name: str = "lm1b") -> Corpus:
    return Corpus(name, "test", "memory", "", lambda: iter(texts), plain)


def tiny_armd(**changes) -> armd.ArmdLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "n_layers": 3,
        "n_heads": 2,
        "max_length": 64,
        "dropout": 0.0,
    }
    model = armd.ArmdLM(armd.ArmdConfig(**{**sizes, **changes}))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # far from uniform: differences must show
    return model.eval()


def tiny_gpt2(**changes):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64}
    config = GPT2Config(**{**sizes, "initializer_range": 0.3, **changes})
    return GPT2LMHeadModel(config).eval()


def loaded(model) -> Loaded:
    return Loaded("test", model.config.model_type, model, tokenizer(), "float32", "")


def saved(model, folder: Path) -> str:
    """The model and its tokenizer, as save_pretrained would leave them."""
    model.save_pretrained(folder)
    tokenizer().save(folder / "aside")
    for file in (folder / "aside").iterdir():
        file.rename(folder / file.name)
    (folder / "aside").rmdir()
    return str(folder)
