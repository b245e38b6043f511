"""The same prompts continued with 1, 2, 4 and 8 streams, side by side in a page; none is picked.

python examples/side_by_side.py smollm2 prompts.txt texts.md
"""

import sys
from pathlib import Path

import armd

name, prompts, out = sys.argv[1:]
model, parts = armd.load(name), []
for prompt in filter(None, Path(prompts).read_text("utf-8").splitlines()):
    parts.append(f"## {prompt}")
    longest = min(128, model.model.config.max_length)
    for streams in (1, 2, 4, 8):
        text = model.write(prompt, length=longest, streams=streams, seed=0, temperature=0.7)
        parts.append(f"**S = {streams}**\n\n> " + text.replace("\n", "\n> "))
Path(out).write_text("\n\n".join(parts) + "\n", "utf-8")
