"""The formulas of results/page.html give what maxrl/advantages/formulas.py gives."""

import math
import re

import pytest
import torch

from maxrl.advantages import ADVANTAGES, weight
from tests import ROOT
from tests.helpers.tensors import close

NAMES = ("reinforce", "rloo", "grpo", "dr_grpo", "maxrl", "maxrl_rare")
RATES = torch.tensor([0.001, 0.0137, 0.1, 0.3, 0.5, 0.85, 0.999, 1], dtype=torch.float64)
# The formulas keep to what both languages have, but for these forms.
PYTHON = {
    r"//.*": "",
    r"function (.+) \{": r"def \1:",
    r"for \(let (\w+) = (.+); \1 < (.+); \1\+\+\) \{": r"for \1 in range(\2, \3):",
    r"if \((.+)\) \{": r"if \1:",
    r"(const|let) (\w+ = .+)": r"\2",
    r"^ *\}": "",
}
script = re.search(r"(?s)<script.*?>(.*?)</script>", (ROOT / "results/page.html").read_text())
code = script[1]
for form, python in PYTHON.items():
    code = re.sub(form, python, code, flags=re.M)
page = {"Math": math, "Infinity": math.inf}
exec(code, page)


def options(name: str, N: int) -> dict:
    """The rare side is of order N - 1 on the page, as Algorithm 1 is."""
    return {"order": N - 1} if name == "maxrl_rare" else {}


@pytest.mark.parametrize("name", NAMES)
def test_the_weights(name):
    """With N rollouts and in the limit of many, to ten digits."""
    limit = [page["weightOfMany"](name, p) for p in RATES.tolist()]
    close(torch.tensor(limit, dtype=RATES.dtype), weight(name, RATES), 1e-10)
    for N in (2, 16, 1024):
        exact = weight(name, RATES, rollouts=N, **options(name, N))
        close(page["weight"](name, RATES, N), exact, 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_advantages(name):
    """Those of every group that can be clicked together, all wrong and all right included."""
    for N in range(2, 33):
        rewards = torch.ones(N + 1, N, dtype=torch.float64).tril(-1)  # row K has K successes
        shown = rewards.clone()
        for K in range(N + 1):
            shown[K].apply_(lambda r, K=K: page["advantage"](name, r, K, N))
        close(shown, ADVANTAGES[name](rewards, **options(name, N)), 1e-9)


def test_the_orders():
    for T in (1, 7, 128):
        series = -sum((1 - RATES) ** k / k for k in range(1, T + 1))
        close(page["truncated"](RATES, T), series)
        close(page["weightOfOrder"](RATES, T), weight("maxrl_order", RATES, order=T), 1e-10)
        close(page["weightOfPass"](RATES, T), weight("pkpo", RATES, k=T), 1e-10)
