"""Train a small model on a text file and let it write with four streams.

python examples/train_on_your_text.py book.txt runs/book [options of armd train mini]
"""

import sys

import armd
from armd.cli import run

text, out, *options = sys.argv[1:]
data = f"{out}-data"
# one worker: several would start this script again, which has no `if __name__ == "__main__":`
how = ["--tokenizer", "byte", "--documents", "blank", "--workers", "1"]
run(["prepare", text, "--out", data, *how])
run(["train", "mini", "--data", data, "--out", out, *options])
model = armd.load(out)
print(model.write(length=min(64, model.model.config.max_length), streams=4, seed=0))
