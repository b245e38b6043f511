"""Train a small model on a text file and let it write with four streams.

python examples/train_on_your_text.py book.txt runs/book [options of armd train mini]
"""

import sys

import armd
from armd.cli import run

text, out, *options = sys.argv[1:]
run(["prepare", text, "--tokenizer", "byte", "--documents", "blank", "--out", f"{out}-data"])
run(["train", "mini", "--data", f"{out}-data", "--out", out, *options])
model = armd.load(out)
print(model.write(length=min(64, model.model.config.max_length), streams=4, seed=0))
