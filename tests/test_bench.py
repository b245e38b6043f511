"""The benches of training and decoding run to their end, and count what they time."""

import json
from pathlib import Path

import pytest
import torch

import armd
from armd.bench import decode, timing
from armd.bench.cache import bench_cache
from armd.bench.decode import bench_decode
from armd.bench.eval import bench_eval
from armd.bench.faults import bench_faults
from armd.bench.gemm import bench_products
from armd.bench.prefill import bench_prefill
from armd.bench.train import bench_train


def test_bench_train_counts_the_extra_rows_of_each_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "gemm_peak", lambda _: 1e9)
    file = tmp_path / "train.json"
    bench_train("tiny", (2,), "48", batch=2, repeats=1, gpt2=False, vocabulary=50, json_file=file)
    rows = {row["model"]: row for row in json.loads(file.read_text())["rows"]}
    flops = {name: row["flop_ratio"] for name, row in rows.items()}
    assert flops["neighbor"] == flops["AR"] == 1
    assert 1 < flops["neighbor S=4"] < flops["neighbor rho=32"] < 2
    assert flops["ARMD L2s=2"] > 1


def test_bench_prefill_compares_every_format_with_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "gemm_peak", lambda _: 1e9)
    file = tmp_path / "prefill.json"
    bench_prefill("tiny", prompt=20, weights=("plain",), repeats=1, vocabulary=50, json_file=file)
    found = json.loads(file.read_text())
    (row,) = found["rows"]
    assert row["share"] == pytest.approx(row["gflops"])
    assert 0 < row["seconds"] <= row["median"]


def test_bench_decode_times_both_queries_and_all_rivals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "READINGS", 1)
    file = tmp_path / "decode.json"
    bench_decode(
        "tiny", 32, streams=(1, 4), weights=("fp32",), repeats=1, passes=1, vocabulary=50,
        json_file=file,
    )  # fmt: skip
    rows = {row["way"]: row for row in json.loads(file.read_text())["rows"]}
    for name in ("ARMD", "neighbor"):
        assert rows[f"{name} S=1 fp32"]["ratio"] == 1
        assert rows[f"{name} S=1 fp32"]["calls"] == 32
        assert rows[f"{name} S=4 fp32"]["calls"] == int(armd.order.strided(32, 4).block[-1]) + 1
    assert {"GPT2LMHeadModel", "masked diffusion T=32", "ARMD S=1, no cache"} <= rows.keys()


def test_nothing_is_timed_before_the_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gemm_peak", "read_bandwidth", "interleave"):
        monkeypatch.setattr(timing, name, lambda *_, **__: pytest.fail("too late"))
    for call in (
        lambda: bench_products(repeats=0),
        lambda: bench_train(repeats=0),
        lambda: bench_train(lengths="0"),
        lambda: bench_prefill("tiny", repeats=0),
        lambda: bench_eval("no such model", data="none", repeats=0),
    ):
        with pytest.raises(armd.ArmdError, match=r"--(repeats 0|lengths '0') must be"):
            call()
    with pytest.raises(armd.ArmdError, match="more than --streams 16"):
        bench_decode("tiny", length=16)
    for options in ({"windows": -3}, {"length": 1}, {"streams": (0,)}):
        with pytest.raises(armd.ArmdError, match="must be above 0"):
            bench_cache("no such model", data="none", **options)


def test_a_campaign_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(armd.ArmdError, match="--kills -1 must be"):
        bench_faults(kills=-1)


def test_all_of_the_memory_is_read() -> None:
    """The loop that memory is timed with adds up every number."""
    from armd.bench.timing import memory_reader

    data = torch.randint(-8, 8, (3 * 4096,)).float()
    assert memory_reader(data)() == data.sum()


def test_a_peer_that_is_not_installed_is_named(capsys, monkeypatch) -> None:
    from armd.bench import peer_ctranslate2, peers

    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    config = armd.ArmdConfig(vocab_size=7, d_model=32, n_layers=1, n_heads=1, max_length=8)
    assert peers.llama_sides(config, 1, length=8, passes=1) == {}
    assert "pip install llama-cpp-python" in capsys.readouterr().out
    assert peer_ctranslate2.ctranslate2_sides(config, 1, length=8, passes=1) == {}
    assert "pip install ctranslate2" in capsys.readouterr().out
