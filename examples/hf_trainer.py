"""Train with transformers' Trainer: sentences of unequal length, padded; orders from the collator.

python examples/hf_trainer.py runs/book sentences.txt runs/trained --steps 200
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoTokenizer, Trainer, TrainingArguments

import armd

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("text", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--steps", type=int, default=200)
asked = parser.parse_args()

loaded = armd.load(asked.model)
lines = [line for line in asked.text.read_text("utf-8").splitlines() if line.strip()]
longest = loaded.model.config.max_length
rows = [{"input_ids": loaded.encode(line)[:longest]} for line in lines]


def collate(batch: list[dict[str, list[int]]]) -> dict[str, object]:
    """Padding counts nothing: attention_mask says where it is. The order is that of two streams."""
    width = max(len(row["input_ids"]) for row in batch)
    ids = torch.full((len(batch), width), loaded.tokenizer.eos)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(batch):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        mask[number, : len(row["input_ids"])] = 1
    streams = 2 if loaded.model.any_order and width > 1 else 1
    order = armd.order.strided(width, streams)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids, "order": order}


trainer = Trainer(
    model=loaded.model,
    args=TrainingArguments(
        output_dir=str(asked.out),
        max_steps=asked.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=max(1, asked.steps // 10),
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        remove_unused_columns=False,
    ),
    train_dataset=rows,  # type: ignore[arg-type] - a list is one
    data_collator=collate,
)
trainer.train()
trainer.save_model(str(asked.out))
AutoTokenizer.from_pretrained(str(loaded.folder)).save_pretrained(asked.out)
