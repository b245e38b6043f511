"""Fill the blanks of a template, with text on both sides known.

python examples/fill_blanks.py runs/book "The ____ jumped over ____."
"""

import sys

import armd

name, template = sys.argv[1:]
model = armd.load(name)
for seed in range(3):
    print(model.fill(template, seed=seed))
