"""The golden cases: models, texts, orders and draws of every kind, as plain data.

`n`: tokens of a text. `prompts`: their lengths, one a row; or `known`: a text a row, # where a
token is given. `order`: how the whole text is written (`each`: another draw for every row);
`blanks`: the same for the blanks alone, after what is known. All that is left out is as the library
has it."""

# ruff: noqa: C408

MODELS = {
    "prefix": dict(vocab_size=61, d_model=32, n_layers=3, n_heads=2, n_two_stream=2),
    "mean": dict(vocab_size=97, d_model=32, n_layers=2, n_heads=4, n_two_stream=1, query="mean"),
    "shift": dict(vocab_size=83, d_model=32, n_layers=2, n_heads=2, query="shift", max_length=256),
    "heads of 12": dict(vocab_size=61, d_model=24, n_layers=3, n_heads=2, n_two_stream=2),
    "inner 36": dict(vocab_size=67, d_model=16, n_layers=2, n_heads=2, d_ff=36, query="mean"),
    "all two": dict(vocab_size=300, d_model=24, n_layers=3, n_heads=1, n_two_stream=3, d_pe=5),
    "wide": dict(vocab_size=300, d_model=64, n_layers=4, n_heads=4, n_two_stream=1),
    "long": dict(vocab_size=131, d_model=32, n_layers=2, n_heads=2, max_length=256),
    "long mean": dict(
        vocab_size=70, d_model=32, n_layers=4, n_heads=2, query="mean", max_length=256
    ),
}
SCATTERED = ["..##.....#......##...#..", "#....#...............###", ".....................#.."]
ENDS = [
    "####............####",
    "#.................##",
    "....................",
    "#########.#########.",
]
CASES = {
    "from nothing": dict(model="prefix", n=24),
    "one token": dict(model="prefix", n=1),
    "full length": dict(model="prefix", n=64, prompts=[30], streams=4),
    "equal prompts": dict(model="prefix", n=20, prompts=[5, 5, 5], streams=2),
    "unequal prompts": dict(model="prefix", n=20, prompts=[0, 12, 3, 19], streams=1),
    "unequal streams": dict(model="prefix", n=30, prompts=[2, 17, 9], streams=4, temperature=0.7),
    "eight streams": dict(model="prefix", n=30, prompts=[4], streams=8),
    "greedy": dict(model="prefix", n=24, prompts=[3, 8], streams=2, temperature=0),
    "top k": dict(model="prefix", n=20, prompts=[2], top_k=5),
    "top p": dict(model="prefix", n=20, prompts=[1, 6], streams=2, top_p=0.8),
    "min p": dict(model="prefix", n=20, prompts=[2], min_p=0.1, temperature=1.4),
    "all filters": dict(
        model="prefix", n=24, streams=4, temperature=0.7, top_k=9, top_p=0.9, min_p=0.02
    ),
    "random order": dict(model="prefix", n=24, order=["random"]),
    "random each": dict(model="prefix", n=16, prompts=[0, 0, 0], order=["random"], each=True),
    "masking": dict(model="prefix", n=30, order=["masking", 6]),
    "masking each": dict(
        model="prefix", n=20, prompts=[0, 0], order=["masking", 12, "cosine"], each=True
    ),
    "shuffled": dict(model="prefix", n=24, order=["shuffled", 10]),
    "forced in blocks": dict(model="prefix", n=24, known=SCATTERED[:1], order=["blocks", 3]),
    "forced in rows": dict(model="prefix", n=24, known=SCATTERED, order=["blocks", 4], each=True),
    "forced prompt": dict(model="prefix", n=18, prompts=[6, 2], order=["random"], top_k=20),
    "forced ahead": dict(model="prefix", n=20, known=ENDS, order=["left_to_right"]),
    "infill": dict(model="prefix", n=24, known=SCATTERED[1:2], streams=2, temperature=0.7),
    "infill rows": dict(model="prefix", n=24, known=SCATTERED),
    "infill ends": dict(model="prefix", n=20, known=ENDS[:3], streams=4),
    "blanks at random": dict(model="prefix", n=24, known=SCATTERED, blanks=["random"]),
    "blanks masking": dict(model="prefix", n=20, known=ENDS[:3], blanks=["masking", 5], top_p=0.9),
    "eos": dict(model="prefix", n=40, prompts=[3, 9, 0], temperature=0.7, eos=41),
    "eos order": dict(model="prefix", n=24, known=SCATTERED, order=["random"], each=True, eos=9),
    "eos streams": dict(model="all two", n=40, prompts=[2, 20, 6], streams=4, top_k=12, eos=139),
    "two streams alone": dict(model="all two", n=24, streams=8, temperature=0.7),
    "two streams masking": dict(model="all two", n=20, prompts=[5], order=["masking", 4]),
    "mean": dict(model="mean", n=20, prompts=[4, 4], streams=2),
    "mean unequal": dict(model="mean", n=20, prompts=[1, 9], streams=4, top_p=0.7),
    "mean forced": dict(model="mean", n=24, known=SCATTERED[:2], order=["blocks", 5], each=True),
    "mean greedy": dict(model="mean", n=20, streams=1, temperature=0),
    "mean penalty": dict(model="mean", n=16, prompts=[3], repetition_penalty=1.5),
    "penalty": dict(model="wide", n=24, prompts=[2, 5], streams=2, repetition_penalty=1.3),
    "penalty greedy": dict(
        model="wide", n=24, known=SCATTERED[:1], temperature=0, repetition_penalty=2.0
    ),
    "penalty top k": dict(
        model="wide", n=20, prompts=[3], repetition_penalty=1.2, temperature=0.7, top_k=30
    ),
    "penalty filters": dict(
        model="wide", n=20, prompts=[1, 7], repetition_penalty=0.8, top_p=0.9, min_p=0.02
    ),
    "penalty forced": dict(
        model="wide", n=24, known=SCATTERED[:2], order=["blocks", 3], repetition_penalty=1.4
    ),
    "beside penalties": dict(model="wide", n=40, prompts=[8], streams=4, temperature=0.7, top_k=50),
    "wide eos": dict(model="wide", n=40, streams=1, top_k=9, eos=280),
    "shift": dict(model="shift", n=20, prompts=[4, 4]),
    "shift unequal": dict(model="shift", n=20, prompts=[1, 11, 6], temperature=0.7, top_p=0.9),
    "shift eos": dict(model="shift", n=24, prompts=[4, 1, 8], temperature=0.7, eos=73),
    "shift long": dict(model="shift", n=180, prompts=[160], temperature=0),
    "heads of 12": dict(model="heads of 12", n=24, prompts=[3, 10], streams=4),
    "heads of 12 forced": dict(model="heads of 12", n=24, known=SCATTERED[:1], order=["blocks", 3]),
    "heads of 12 eos": dict(model="heads of 12", n=24, prompts=[2, 6, 6], streams=2, eos=8),
    "inner 36": dict(model="inner 36", n=20, prompts=[2], streams=2, min_p=0.05),
    "long prompt": dict(model="long", n=256, prompts=[232], streams=4),
    "long and short": dict(model="long", n=145, prompts=[135, 120], streams=2, temperature=0.7),
    "long blocks": dict(model="long", n=150, order=["masking", 2]),
    "long penalty": dict(model="long", n=190, prompts=[175], repetition_penalty=1.2),
    "long mean": dict(model="long mean", n=200, prompts=[180], streams=8),
    "long mean beside": dict(model="long mean", n=24, prompts=[3], streams=2),
}
