"""Record what the library and the server's engine write for the golden cases, to the last bit."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import torch
from cases import CASES, MODELS

import armd

WEIGHTS = ("plain", "fp32", "int8")
ROUTES = ("library", "engine")
CHOICES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def model_of(name: str, weights: str) -> armd.ArmdLM:
    """Weights that are the same on any machine: binary fractions, drawn as integers by name."""
    try:
        from armd.native.packed import pack
    except ImportError:
        from armd.fast import pack
    torch.manual_seed(0)
    model = armd.ArmdLM(armd.ArmdConfig(**{"max_length": 64, "dropout": 0.0, **MODELS[name]}))
    unit = 256 if model.config.d_model <= 32 else 512  # wider ones round more
    with torch.no_grad():
        for part, weight in model.named_parameters():
            noise = torch.randint(-128, 128, weight.shape, generator=_seeded(name, part)) / unit
            weight.copy_(1 + noise / 4 if part.endswith("norm.weight") else noise)
    return pack(model.eval(), weights)


def request(name: str) -> dict:
    """A case in tensors: tokens and known (batch, n); an order or None; streams; generators."""
    case = CASES[name]
    n, g = case["n"], _seeded(name, "text")
    masks = case.get("known") or ["#" * k + "." * (n - k) for k in case.get("prompts", [0])]
    known = torch.tensor([[mark == "#" for mark in mask] for mask in masks])
    tokens = torch.randint(MODELS[case["model"]]["vocab_size"], known.shape, generator=g)
    order = None
    if "order" in case:
        order = _order(n, *case["order"], g=g)
        if case.get("each"):
            order = armd.order.stack([_order(n, *case["order"], g=g) for _ in masks])
    if "blanks" in case:
        own = [_order(int((~row).sum()), *case["blanks"], g=g) for row in known]
        pairs = zip(known, own, strict=True)
        order = armd.order.stack([armd.order.completing(*pair) for pair in pairs])
    return {"tokens": tokens, "known": known, "order": order, "streams": case.get("streams", 1)}


def record(route: str, weights: tuple[str, ...] = WEIGHTS) -> dict[str, dict[str, dict]]:
    """{case: {weights: what was written}}: row by row the tokens drawn, in the order in which they
    were, their log-probabilities, and where they stand, passes parted by |."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, dict]] = {name: {} for name in CASES}
    for kind in weights:
        for name in MODELS:
            model = model_of(name, kind)
            mine = [case for case in CASES if CASES[case]["model"] == name]
            for case, written in (_library if route == "library" else _engine)(model, mine):
                found[case][kind] = written
    return found


def _library(model: armd.ArmdLM, names: list[str]):
    for name in names:
        asked, case = request(name), CASES[name]
        tokens, known = asked["tokens"], asked["known"]
        options = {key: case[key] for key in (*CHOICES, "eos") if key in case}
        options |= {key: asked[key] for key in ("streams", "order") if key in case}
        if "blanks" in case:
            options["order"] = asked["order"]
        if "known" in case:
            given = {"tokens": tokens, "known": known}
        else:
            rows = zip(tokens.tolist(), case.get("prompts", []), strict=False)
            given = {"length": case["n"], "prompt": [row[:k] for row, k in rows] or None}
        rows = [[] for _ in tokens]
        for step in armd.stream(model, **given, **options, generator=generators(name)):
            each = zip(rows, step.position, step.token, step.logp, step.drawn, strict=True)
            for row, position, token, logp, drawn in each:
                new = zip(position.tolist(), token.tolist(), logp.tolist(), drawn, strict=True)
                row.append((step.index, [(p, t, q) for p, t, q, here in new if here]))
        if "known" in case:
            given = {"tokens": tokens.where(known, -1), "known": known}
        write = armd.infill if "known" in case else armd.generate
        text = write(model, **given, **options, generator=generators(name))
        hashed = [crc32(json.dumps(row).encode()) for row in text.tolist()]
        yield name, _written(rows) | {"text": hashed}


def _engine(model: armd.ArmdLM, names: list[str]):
    """All rows of all cases of a model at once."""
    from engine_adapter import write

    pieces, owners = [], []
    for name in names:
        asked, case = request(name), CASES[name]
        for row, generator in enumerate(generators(name)):
            order = asked["order"] and asked["order"].rows(len(asked["tokens"]))
            which = 0 if order is None or order.batch == 1 else row
            piece = {
                "tokens": asked["tokens"][row].tolist(),
                "known": asked["known"][row].tolist(),
                "order": order and order[which],
                "streams": asked["streams"],
                "sampling": {key: case[key] for key in CHOICES if key in case},
                "generator": generator,
                "eos": case.get("eos"),
            }
            pieces.append(piece)
            owners.append(name)
    heard = write(model, pieces)
    for name in names:
        mine = [one for one, owner in zip(heard, owners, strict=True) if owner == name]
        yield name, _written([steps for steps, _ in mine]) | {"end": [end for _, end in mine]}


def _written(rows: list[list[tuple[int, list[tuple[int, int, float]]]]]) -> dict:
    """From (pass, [(position, token, logp)]) to what is kept."""
    at = []
    for row in rows:
        assert [index for index, _ in row] == list(range(len(row))), "a pass is missing"
        at.append("|".join(" ".join(str(p) for p, _, _ in new) for _, new in row).rstrip("|"))
    flat = [[one for _, new in row for one in new] for row in rows]
    tokens = [[token for _, token, _ in row] for row in flat]
    return {"at": at, "tokens": tokens, "logp": [" ".join(q.hex() for *_, q in r) for r in flat]}


def generators(name: str) -> list[torch.Generator]:
    """One for each row."""
    return [_seeded(name, row) for row in range(len(request(name)["tokens"]))]


def _seeded(*words: object) -> torch.Generator:
    return torch.Generator().manual_seed(crc32(repr(words).encode()))


def _order(n: int, kind: str, *how, g: torch.Generator) -> armd.Order:
    if kind == "blocks":
        return armd.Order(torch.randperm(n, generator=g), torch.arange(n) // how[0])
    if kind == "left_to_right":
        return armd.order.left_to_right(n)
    return getattr(armd.order, kind)(n, *how, generator=g)


def machine() -> str:
    """What the last bits depend on: the processor, the C compiler and torch."""
    parts = [torch.__version__]
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        lines = cpu.read_text().split("\n\n")[0].splitlines()
        parts += [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    try:
        compiler = [os.environ.get("CC") or "cc", "--version"]
        parts += subprocess.run(compiler, capture_output=True, text=True).stdout.splitlines()[:1]
    except OSError:
        pass
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


# the comparison


def golden(file: Path) -> dict:
    return json.loads(file.read_text())


def expected(kept: dict, route: str, name: str, weights: str) -> dict:
    """Of the engine, only what is unlike the library is kept."""
    library = kept["library"][name][weights]
    return library if route == "library" else library | kept["engine"][name].get(weights, {})


def differences(
    kept: dict, route: str, weights: str, *, within: float, bits: bool, new: dict | None = None
) -> list[str]:
    """What is written otherwise than recorded, a line each."""
    new, found = new or record(route, (weights,)), []
    for name in CASES:
        old, now = expected(kept, route, name, weights), new[name][weights]
        where = f"{route} {weights} '{name}'"
        found += [
            f"{where}: {key} {now[key]} was {old.get(key)}"
            for key in now
            if key != "logp" and now[key] != old.get(key)
        ]
        pairs = enumerate(zip(old["logp"], now["logp"], strict=True))
        for row, (before, after) in pairs:
            was, is_ = ([*map(float.fromhex, text.split())] for text in (before, after))
            if len(was) != len(is_):
                found.append(f"{where}: row {row} has {len(is_)} tokens, had {len(was)}")
                continue
            gaps = [abs(a - b) for a, b in zip(was, is_, strict=True)]
            far = max(gaps, default=0.0)
            if not far <= within or (bits and before != after):
                first = next(i for i, gap in enumerate(gaps) if not gap <= (0 if bits else within))
                found.append(f"{where}: row {row} logp off by {far:.2g}, first at draw {first}")
    return found


def main(file: str) -> None:
    """Write the golden file from the armd that is on the path."""
    library, engine = record("library"), record("engine")
    unlike: dict[str, dict[str, dict]] = {name: {} for name in CASES}
    for name in CASES:
        for kind in WEIGHTS:
            old, now = library[name][kind], engine[name][kind]
            unlike[name][kind] = {key: now[key] for key in now if now[key] != old.get(key)}
    kept = {"machine": machine(), "library": library, "engine": unlike}
    lines = json.dumps(kept, separators=(",", ":")).replace('"},"', '"},\n"').replace("},", "},\n")
    Path(file).write_text(lines.replace("\n\n", "\n") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
