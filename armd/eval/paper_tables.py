"""The paper's published figures, each with the table or figure it stands in.

Source: "Auto-Regressive Masked Diffusion Models" (Karami and Ghodsi). Lower is better.
"""

DATA = ("lambada", "wikitext2", "ptb", "wikitext103", "lm1b")
TITLES = ("LAMBADA", "WikiText2", "PTB", "WikiText103", "1BW")

Scores = tuple[float, float, float, float, float]

# Table 1 (zero-shot perplexity). "bound": the paper quotes an upper bound. Columns as in DATA.
TABLE_1_SMALL: dict[str, Scores] = {
    "GPT-2": (45.04, 42.43, 138.43, 41.60, 75.20),
    "D3PM (bound)": (93.47, 77.28, 200.82, 75.16, 138.92),
    "PLAID (600K, bound)": (57.28, 51.80, 142.60, 50.86, 91.12),
    "SEDD-Uniform (400K, bound)": (65.40, 50.27, 140.12, 49.60, 101.37),
    "SEDD (400K, bound)": (50.92, 41.84, 114.24, 40.62, 79.29),
    "RADD (400K, bound)": (51.70, 39.98, 107.85, 37.98, 72.99),
    "ARMD (180K)": (44.66, 36.25, 130.31, 35.66, 53.18),
    "ARMD (400K)": (45.35, 35.64, 123.43, 35.15, 52.94),
}
TABLE_1_MEDIUM: dict[str, Scores] = {
    "GPT-2": (35.66, 31.80, 123.14, 31.39, 55.72),
    "SEDD (400K, bound)": (42.77, 31.04, 87.12, 29.98, 61.19),
    "RADD (400K, bound)": (44.10, 30.60, 82.08, 29.29, 60.32),
    "ARMD (120K)": (40.62, 27.57, 105.09, 27.09, 45.49),
    "ARMD (300K)": (39.08, 26.06, 97.75, 25.55, 43.91),
}

# Table 2 (generation): judge gpt2-large, perplexity (entropy in bits) with T = 1024, 512 (S = 2)
# and 256 (S = 4) steps. Baselines by way of Zheng et al.
TABLE_2: dict[str, tuple[str, str, str]] = {
    "AR baseline": ("~36 (8.1)", "-", "-"),
    "SEDD": ("~106 (8.1)", "~110 (8.1)", "-"),
    "MDLM": ("~103 (8.1)", "~113 (8.1)", "-"),
    "ARMD (rho=32, SBP 10K)": ("38.7 (8.0)", "43.2 (8.0)", "47.8 (8.1)"),
    "ARMD (rho=32, SBP 50K)": ("39.1 (8.0)", "40.1 (8.1)", "43.2 (8.1)"),
    "ARMD (rho=32, SBP 80K)": ("36.5 (7.9)", "37.8 (8.0)", "39.4 (8.0)"),
    "ARMD (rho=16, SBP 10K)": ("50.0 (8.1)", "54.6 (8.1)", "64.7 (8.2)"),
    "ARMD (rho=16, SBP 50K)": ("45.7 (8.0)", "46.1 (8.1)", "50.1 (8.1)"),
    "ARMD (rho=16, SBP 80K)": ("39.4 (8.0)", "40.5 (8.1)", "43.7 (8.1)"),
}
# Table 2's caption: seconds to sample a sequence of 1024 on one H100.
SECONDS_A_SAMPLE = {1: 3.51, 2: 1.78, 4: 0.93}

# Table 3 (LM1B test perplexity).
TABLE_3: dict[str, float] = {
    "Transformer-X Base (AR)": 23.5,
    "Transformer (AR)": 22.83,
    "D3PM-absorb": 82.34,
    "Diffusion-LM": 118.62,
    "DiffusionBert": 63.78,
    "SEDD (1M)": 32.68,
    "MDLM (1M)": 31.78,
    "BD3-LMs L'=16 (1M)": 30.60,
    "BD3-LMs L'=4 (1M)": 28.23,
    "ARMD (300K)": 23.64,
    "ARMD (1M)": 22.36,
}

# Table 4 (training throughput, appendix): sequences a second on 4 H100, cost against AR.
TABLE_4: dict[str, tuple[float, float]] = {
    "AR": (448.02, 1.00),
    "ARMD L2s=3": (406.35, 1.10),
    "ARMD L2s=6": (368.53, 1.22),
    "ARMD L2s=9": (338.89, 1.32),
    "ARMD L2s=12": (312.98, 1.43),
}

# Ablation table (appendix). Columns as in DATA.
ABLATION_SMALL: dict[str, Scores] = {
    "L2s=6, rho=32 (60K)": (46.65, 38.43, 142.98, 37.85, 56.32),
    "L2s=6, rho=32 (180K)": (44.66, 36.25, 130.31, 35.66, 53.18),
    "L2s=6, rho=32 (400K)": (45.35, 35.64, 123.43, 35.15, 52.94),
    "L2s=6, rho=64 (60K)": (47.16, 37.83, 152.75, 37.34, 57.26),
    "L2s=6, rho=64 (180K)": (45.44, 36.18, 132.10, 35.70, 55.63),
    "L2s=6, rho=64 (400K)": (46.11, 34.21, 127.58, 33.60, 55.14),
    "L2s=12, rho=32 (180K)": (58.28, 37.15, 118.59, 36.84, 54.05),
    "L2s=12, rho=32 (400K)": (56.90, 35.45, 110.07, 35.12, 51.24),
}
ABLATION_MEDIUM: dict[str, Scores] = {
    "L2s=12, rho=32 (60K)": (43.18, 30.14, 122.71, 29.72, 48.16),
    "L2s=12, rho=32 (120K)": (40.62, 27.57, 105.09, 27.09, 45.49),
    "L2s=12, rho=32 (300K)": (39.08, 26.06, 97.75, 25.55, 43.91),
    "L2s=6, rho=32 (60K)": (47.32, 30.49, 122.29, 30.01, 47.07),
    "L2s=6, rho=32 (120K)": (44.77, 28.16, 110.19, 27.61, 45.44),
    "L2s=6, rho=32 (300K)": (43.78, 27.20, 103.98, 26.67, 43.54),
}

Curves = dict[str, dict[str, dict[int, float]]]

STEPS = (60, 120, 180, 240, 300, 320, 350, 400)
"""Thousands, at which the curves have points."""


def _curve(*scores: float | None) -> dict[int, float]:
    """Points by step; None where the figure has none."""
    points = zip(STEPS, scores, strict=False)
    return {step: score for step, score in points if score is not None}


# Figure (perplexity against thousands of steps, small models).
CURVES_SMALL: Curves = {
    "lambada": {
        "L2s=12, rho=32": _curve(51.2, 54.13, 58.28, 58.25, 57.89, None, 57.81, 56.9),
        "L2s=6, rho=32": _curve(46.65, 45.22, 44.66, 44.49, 44.67, None, 44.94, 45.35),
        "L2s=6, rho=64": _curve(None, 46.57, 45.44, 45.31, 45.62, None, 45.89, 46.11),
    },
    "wikitext2": {
        "L2s=12, rho=32": _curve(40.32, 38.13, 37.15, 36.29, 35.85, None, 35.55, 35.45),
        "L2s=6, rho=32": _curve(38.43, 36.87, 36.25, 36.21, 35.99, None, 35.97, 35.64),
        "L2s=6, rho=64": _curve(None, 37.54, 36.18, 35.14, 34.6, None, 34.42, 34.21),
    },
    "ptb": {
        "L2s=12, rho=32": _curve(141.87, 123.71, 118.59, 115.64, 113.23, None, 112.09, 110.07),
        "L2s=6, rho=32": _curve(142.98, 135.34, 130.31, 127.7, 125.74, None, 125.1, 123.43),
        "L2s=6, rho=64": _curve(None, 138.02, 132.1, 132.25, 130.42, None, 129.27, 127.58),
    },
    "wikitext103": {
        "L2s=12, rho=32": _curve(39.89, 37.8, 36.84, 35.93, 35.48, None, 35.2, 35.12),
        "L2s=6, rho=32": _curve(37.85, 36.21, 35.66, 35.66, 35.5, None, 35.46, 35.15),
        "L2s=6, rho=64": _curve(None, 37.05, 35.7, 34.57, 33.97, None, 33.79, 33.6),
    },
    "lm1b": {
        "L2s=12, rho=32": _curve(None, None, 54.05, 53.09, 52.23, None, 51.63, 51.24),
        "L2s=6, rho=32": _curve(56.32, 53.9, 53.18, 52.74, 52.43, None, 52.67, 52.94),
        "L2s=6, rho=64": _curve(None, 56.63, 55.63, 55.35, 55.2, None, 55.32, 55.14),
    },
}

# Figure (the same, medium models). The figure's legend names its two curves the other way round
# than the ablation table; here they go by the table.
CURVES_MEDIUM: Curves = {
    "lambada": {
        "L2s=6, rho=32": _curve(47.32, 44.77, 41.24, 42.84, 43.78, 42.36),
        "L2s=12, rho=32": _curve(43.18, 40.62, 39.6, 39.31, 39.08, None, 39.44),
    },
    "wikitext2": {
        "L2s=6, rho=32": _curve(30.49, 28.16, 27.4, 27.83, 27.2, 26.96),
        "L2s=12, rho=32": _curve(30.14, 27.57, 26.64, 26.21, 26.06, None, 26.01),
    },
    "ptb": {
        "L2s=6, rho=32": _curve(122.29, 110.19, 108.9, 105.51, 103.98, 104.02),
        "L2s=12, rho=32": _curve(122.71, 105.09, 100.55, 99.83, 97.75, None, 97.6),
    },
    "wikitext103": {
        "L2s=6, rho=32": _curve(30.01, 27.61, 26.91, 27.33, 26.67, 26.45),
        "L2s=12, rho=32": _curve(29.72, 27.09, 26.13, 25.73, 25.55, None, 25.53),
    },
    "lm1b": {
        "L2s=6, rho=32": _curve(47.07, 45.44, 44.62, 43.6, 43.54, 43.42),
        "L2s=12, rho=32": _curve(48.16, 45.49, 44.57, 44.28, 43.91, None, 43.78),
    },
}
