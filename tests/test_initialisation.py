"""A fresh model starts with the spread that its config names, in every weight."""

import pytest

import armd


@pytest.mark.parametrize("pe_std", [None, 0.02])
@pytest.mark.parametrize("query", ["prefix", "mean", "shift"])
def test_every_weight_has_the_spread_its_config_names(query: str, pe_std: float | None) -> None:
    config = armd.ArmdConfig(
        vocab_size=500, d_model=128, n_layers=3, n_heads=2, query=query, pe_std=pe_std
    )
    for name, weight in armd.ArmdLM(config).named_parameters():
        if "norm" in name:
            assert (weight == 1).all(), name
            continue
        wanted = weight.shape[-1] ** -0.5
        if name in ("bos", "embedding.weight"):
            wanted = config.init_std
        elif "position_code" in name:
            wanted = pe_std or wanted
        elif "out." in name or "down." in name:
            wanted /= (2 * config.n_layers) ** 0.5
        assert weight.std().item() == pytest.approx(wanted, rel=0.25 if name == "bos" else 0.05)
