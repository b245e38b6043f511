"""Stage ablations: one choice changed at a time, at a third of the steps."""

from __future__ import annotations

from typing import Any

from ..train.run_folder import read_recipe
from .result_file import Findings
from .runs import Study, ablation_runs
from .scores import dataset_of, heldout, load, scores, weights_of
from .train_runs import require


def measure(study: Study, findings: Findings) -> None:
    batches, scale, data = heldout(study), study.scale, dataset_of(study)
    for trained in study.chosen(ablation_runs(scale)):
        folder = require(study, trained.name)
        facts = {**weights_of(folder), **data, "heldout_rows": scale.heldout_rows}

        def figures(folder: Any = folder) -> dict[str, Any]:
            return scores(load(folder), read_recipe(folder), batches, draws=scale.draws)

        findings.entry(trained.name, facts, figures)
