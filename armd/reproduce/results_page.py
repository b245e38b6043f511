"""docs/results.md: what stands between its markers is written from results/*.json; the words
around them are a person's and stay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import ArmdError
from ..runtime.atomic_files import write_text
from .claims import claims_table
from .figures import draw_all
from .result_file import STAGES, read
from .tables import (
    ablation_table,
    generation_table,
    latency_tables,
    perplexity_table,
    price_table,
)
from .uncertainty import seed_spread

TABLES = {
    "perplexity": perplexity_table,
    "generation": generation_table,
    "price": price_table,
    "latency": latency_tables,
    "ablations": ablation_table,
}
IMAGES = {
    "perplexity": ("perplexity", "curves"),
    "generation": ("generation",),
    "price": ("price",),
    "latency": ("latency",),
    "ablations": (),
}
TITLES = {
    "perplexity": "Perplexity at equal steps",
    "generation": "Generated text at equal entropy",
    "price": "The price of parallelism, split in two",
    "latency": "Latency",
    "ablations": "Ablations",
}


def write_page(results: Path, docs: Path) -> Path:
    """Bring every marked part of docs/results.md, and its images, up to date."""
    found: dict[str, Any] = {}
    for stage in STAGES:
        file = results / f"reproduce-{stage}.json"
        if file.exists():
            found[stage] = read(file)
    entries = {stage: held["entries"] for stage, held in found.items()}
    page = docs / "results.md"
    try:
        text = page.read_text("utf-8") if page.exists() else skeleton()
    except UnicodeDecodeError:
        raise ArmdError(f"{page} is no UTF-8 text; move it away") from None
    try:
        draw_all(entries, docs / "images")
        text = replaced(text, "claims", claims_table(entries))
        for stage in STAGES:
            pooled = seed_spread(entries.get("perplexity", {}))
            text = replaced(text, stage, part(stage, found.get(stage), pooled))
    except ArmdError:
        raise
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise ArmdError(
            f"a file in {results} lacks figures, or holds others ({error!r}); put its copy "
            "back, or remove it and measure again"
        ) from None
    docs.mkdir(parents=True, exist_ok=True)
    write_text(page, text)
    print(page)
    return page


def part(stage: str, held: dict[str, Any] | None, pooled: float | None = None) -> str:
    """A stage's table and images, with the command that made them."""
    if held is None or not held["entries"]:
        return f"Not run yet: `armd reproduce {stage}`."
    dates = sorted(entry["date"] for entry in held["entries"].values())
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    command = f"armd reproduce {stage}"
    if held["scale"] != "mini":
        command += f" --scale {held['scale']}"
    images = "\n".join(f"![{TITLES[stage]}](images/results-{i}.png)" for i in IMAGES[stage])
    given = (pooled,) if stage == "ablations" else ()
    table = TABLES[stage](held["entries"], *given)
    return f"`{command}` ({span})\n\n{table}\n\n{images}".strip()


def replaced(text: str, name: str, new: str) -> str:
    """The text with what stands between the markers of `name` replaced."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if begin not in text:
        text += f"\n## {TITLES.get(name, name)}\n\n{begin}\n{end}\n"
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return between.sub(lambda _: f"{begin}\n{new}\n{end}", text)


def skeleton() -> str:
    lines = ["# Results", "", "<!-- begin claims -->", "<!-- end claims -->", ""]
    for stage in STAGES:
        lines += [f"## {TITLES[stage]}", "", f"<!-- begin {stage} -->", f"<!-- end {stage} -->", ""]
    return "\n".join(lines)
