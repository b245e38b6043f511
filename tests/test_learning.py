"""A fresh model learns a real text as well as an autoregressive one of its size does."""

import sysconfig
from pathlib import Path

import torch

import armd

LENGTH, BATCH, STEPS = 64, 16, 300


def real_text() -> torch.Tensor:
    """Python's own standard library, as bytes."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = ["argparse.py", "ast.py", "datetime.py", "inspect.py", "tarfile.py", "typing.py"]
    text = b"".join((folder / name).read_bytes() for name in names if (folder / name).exists())
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().clamp(max=127)


def train(query: str, text: torch.Tensor, **size) -> float:
    """The loss over the last 50 of 300 steps, left to right; each model sees the same batches."""
    torch.manual_seed(0)
    options = {"vocab_size": 128, "d_model": 64, "n_layers": 4, "n_heads": 2, "dropout": 0.0}
    model = armd.ArmdLM(armd.ArmdConfig(**options | size, max_length=LENGTH, query=query)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    order, generator, losses = armd.order.left_to_right(LENGTH), torch.Generator(), []
    generator.manual_seed(1)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 30)
        start = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=generator)
        loss = armd.loss(model, text[start + torch.arange(LENGTH)], order)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-50:]) / 50


def test_three_hundred_steps_come_within_three_percent_of_autoregressive() -> None:
    text = real_text()
    autoregressive, ours = train("shift", text), train("prefix", text)
    assert autoregressive < 2.8, "the text was not learned at all"
    assert ours < 1.03 * autoregressive, (ours, autoregressive)
