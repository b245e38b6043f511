"""How probable is a text left to right, in strided streams, and in a random order? Each is exact,
in one pass.

python examples/score_orders.py runs/book "It was a dark night."
"""

import sys

import armd

name, text = sys.argv[1:]
model = armd.load(name)
for order, options in (
    ("left_to_right", {}),
    ("strided", {"streams": 2}),
    ("strided", {"streams": 4}),
    ("random", {}),
):
    score = model.score(text, order=order, **options)
    print(f"{order} {options or ''}: {score.total:.2f} nats, perplexity {score.perplexity:.2f}")
