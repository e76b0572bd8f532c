"""The formulas of results/page.html give what maxrl/advantages.py gives."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT

from maxrl.advantages import ADVANTAGES, weight

PAGE = (ROOT / "results/page.html").read_text()
NAMES = ("reinforce", "rloo", "grpo", "dr_grpo", "maxrl", "maxrl_rare")
RATES = (0.001, 0.0137, 0.1, 0.3, 0.5, 0.85, 0.999, 1)
# A line of the page's formulas and the line of Python that says the same.
SAME = {
    r" *//.*": "",
    r'"use strict";': "",
    r"function (\w+\(.*\)) \{": r"def \1:",
    r"for \(let (\w+) = (.+); \1 < (.+); \1\+\+\) \{": r"for \1 in range(\2, \3):",
    r"if \((.+)\) \{": r"if \1:",
    r"\}": "",
    r"(?:const |let )?(\w+ [+*]?= .+);": r"\1",
    r"(return .+);": r"\1",
}


def translated(script: str) -> dict:
    """The functions of the page's first script; a line in no known form fails."""
    lines = []
    for line in script.splitlines():
        code = line.strip()
        found = [(js, python) for js, python in SAME.items() if re.fullmatch(js, code)]
        assert len(found) == 1 or not code, line
        lines.append(line.replace(code, re.sub(*found[0], code)) if code else "")
    functions = {
        "Math": SimpleNamespace(log=math.log, sqrt=math.sqrt, min=min),
        "Infinity": math.inf,
    }
    exec("\n".join(lines), functions)
    return functions


page = translated(re.search(r"<script.*?>(.*?)</script>", PAGE, re.S)[1])


def options(name: str, N: int) -> dict:
    """The rare side is of order N - 1 on the page, as Algorithm 1 is."""
    return {"order": N - 1} if name == "maxrl_rare" else {}


@pytest.mark.parametrize("name", NAMES)
def test_the_weights(name):
    """With N rollouts and in the limit of many, to ten digits."""
    p = torch.tensor(RATES, dtype=torch.float64)
    limit = [page["weightOfMany"](name, rate) for rate in RATES]
    assert limit == pytest.approx(weight(name, p).tolist(), rel=1e-10)
    for N in (2, 16, 1024):
        ours = [page["weight"](name, rate, N) for rate in RATES]
        exact = weight(name, p, rollouts=N, **options(name, N))
        assert ours == pytest.approx(exact.tolist(), rel=1e-10), N


@pytest.mark.parametrize("name", NAMES)
def test_the_advantages(name):
    """Those of every group that can be clicked together, all wrong and all right included."""
    for N in range(2, 33):
        rewards = torch.ones(N + 1, N, dtype=torch.float64).tril(-1)  # row K has K successes
        expected = ADVANTAGES[name](rewards, **options(name, N))
        for K, row in enumerate(rewards.tolist()):
            ours = [page["advantage"](name, int(r), K, N) for r in row]
            assert np.allclose(ours, expected[K], rtol=1e-9, atol=1e-12), (N, K)


def test_the_orders():
    for p in RATES:
        for T in (1, 7, 128):
            series = -sum((1 - p) ** k / k for k in range(1, T + 1))
            assert page["truncated"](p, T) == pytest.approx(series, abs=1e-12)
            exact = weight("maxrl_order", p, order=T)
            assert page["weightOfOrder"](p, T) == pytest.approx(exact, rel=1e-10)
            assert page["weightOfPass"](p, T) == pytest.approx(weight("pkpo", p, k=T), rel=1e-10)
