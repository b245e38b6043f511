"""Adapt a model to a text with LoRA (peft): low-rank weights learn, the rest is fixed. Then merge.

python examples/lora.py runs/book other.txt runs/merged --steps 200
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

import armd

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("text", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--length", type=int, default=64)
asked = parser.parse_args()

loaded = armd.load(asked.model)
layers = ["query", "key_value", "out", "gate_up", "down"]
model = get_peft_model(loaded.model, LoraConfig(r=8, lora_alpha=16, target_modules=layers))
model.print_trainable_parameters()
tokens = torch.tensor(loaded.encode(asked.text.read_text("utf-8")))
length = min(asked.length, loaded.model.config.max_length, len(tokens) - 1)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
model.train()
for step in range(asked.steps):
    starts = torch.randint(len(tokens) - length, (8,)).tolist()
    batch = torch.stack([tokens[start : start + length] for start in starts])
    streams = (1, 2, 4)[step % 3] if loaded.model.any_order else 1
    loss = model(input_ids=batch, order=armd.order.strided(length, streams), labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0 or step == asked.steps - 1:
        print(f"step {step}, {streams} streams: loss {loss.item():.3f}")
model.merge_and_unload().save_pretrained(asked.out)
loaded.tokenizer.save(asked.out / "tokenizer")
for file in (asked.out / "tokenizer").iterdir():
    file.rename(asked.out / file.name)
(asked.out / "tokenizer").rmdir()
print(armd.load(asked.out).write(length=length, seed=0))
