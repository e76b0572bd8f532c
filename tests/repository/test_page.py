"""The page to play with: its formulas give what maxrl/advantages.py gives, and it needs nothing but itself."""

import html.parser
import itertools
import json
import math
import re
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT

from maxrl.advantages import ADVANTAGES, weight
from maxrl.study.plots import STYLE

PAGE = (ROOT / "results/page.html").read_text()
FORMULAS, DRAWING = re.findall(r"<script.*?>(.*?)</script>", PAGE, re.S)
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
    """The functions of the page's first script. A line in no known form fails, so that nothing is read wrongly."""
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


page = translated(FORMULAS)


def test_the_series():
    """The values that the issue of a page like this begins with; then the order's own definition and the limit."""
    assert page["truncated"](0.3, 1) == pytest.approx(-0.7) and page["truncated"](
        0.3, math.inf
    ) == pytest.approx(-1.203973)
    for p, T in itertools.product(RATES, (1, 2, 7, 128)):
        assert page["truncated"](p, T) == pytest.approx(
            -sum((1 - p) ** k / k for k in range(1, T + 1)), abs=1e-12
        )
    assert page["truncated"](0.3, 128) == pytest.approx(math.log(0.3), abs=1e-12)


def options(name, N):
    """The rare side is of order N - 1 on the page, as Algorithm 1."""
    return {"order": N - 1} if name == "maxrl_rare" else {}


@pytest.mark.parametrize("name", NAMES)
def test_the_weights(name):
    """To ten digits, of N rollouts and of many."""
    p = torch.tensor(RATES, dtype=torch.float64)
    assert [page["weightOfMany"](name, rate) for rate in RATES] == pytest.approx(
        weight(name, p).tolist(), rel=1e-10
    )
    for N in (2, 3, 16, 128, 1024):
        ours = [page["weight"](name, rate, N) for rate in RATES]
        assert ours == pytest.approx(
            weight(name, p, rollouts=N, **options(name, N)).tolist(), rel=1e-10
        ), N


def test_the_weights_of_an_order_and_of_pass_at_k():
    for p, T in itertools.product(RATES, (1, 2, 7, 128)):
        assert page["weightOfOrder"](p, T) == pytest.approx(
            weight("maxrl_order", p, order=T), rel=1e-10
        )
        assert page["weightOfPass"](p, T) == pytest.approx(weight("pkpo", p, k=T), rel=1e-10)
        summed = sum(
            page["weightOfPass"](p, k) / k for k in range(1, T + 1)
        )  # as the page says of PKPO
        assert summed == pytest.approx(page["weightOfOrder"](p, T), rel=1e-10)
    assert (
        page["weightOfOrder"](0.3, math.inf) == pytest.approx(1 / 0.3)
        and page["weightOfPass"](0.3, math.inf) == 0
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_advantages(name):
    """Of every group that can be clicked together, all wrong and all right included."""
    for N in range(2, 33):
        rewards = torch.ones(N + 1, N, dtype=torch.float64).tril(-1)  # row K has K successes
        expected = ADVANTAGES[name](rewards, **options(name, N))
        ours = [
            [page["advantage"](name, int(r), K, N) for r in row]
            for K, row in enumerate(rewards.tolist())
        ]
        assert np.allclose(ours, expected, rtol=1e-9, atol=1e-12), N


@pytest.mark.parametrize("name", NAMES)
def test_noise_and_rows(name):
    """By enumeration of all groups of five, with scores of unit variance."""
    rewards = torch.tensor(list(itertools.product((0.0, 1.0), repeat=5)), dtype=torch.float64)
    advantages = ADVANTAGES[name](rewards, **options(name, 5))
    for p in RATES:
        chance = (p * rewards + (1 - p) * (1 - rewards)).prod(1)
        assert page["noise"](name, p, 5) == pytest.approx(
            (chance @ advantages.square().sum(1) / 25).item(), rel=1e-10
        )
        assert page["live"](name, p, 5) == pytest.approx(
            (chance @ (advantages != 0).double().mean(1)).item(), rel=1e-10
        )


def test_the_rare_side_of_32():
    """Noise and rows of maxrl_rare and maxrl, as published with the estimator."""
    for p, *expected in (
        (0.05, 0.503, 0.05, 0.498, 0.81),
        (0.3, 0.114, 0.30, 0.082, 1),
        (0.9, 0.004, 0.10, 0.004, 0.97),
    ):
        found = [
            page[f](name, p, 32) for name in ("maxrl_rare", "maxrl") for f in ("noise", "live")
        ]
        assert np.allclose(found, expected, atol=0.0051, rtol=0) and np.allclose(
            found[::2], expected[::2], atol=0.00051
        )


def test_rounds():
    """Four of N: their order is the sum, and by enumeration of N = 2 the rollouts are those of the rounds that are reached."""
    for p, N in itertools.product(RATES, (2, 8, 64)):
        assert page["weightOfOrder"](p, 4 * N) == pytest.approx(
            weight("maxrl_rare", p, rollouts=(N,) * 4), rel=1e-10
        )
    for p in RATES:
        taken = 0
        for rewards in itertools.product((0, 1), repeat=8):
            chance = math.prod(p if r else 1 - p for r in rewards)
            taken += chance * next((n for n in (2, 4, 6) if any(rewards[:n])), 8)
        assert page["sampled"](p, 2, 4) == pytest.approx(taken)


def test_grpo_is_bounded_as_the_page_says():
    for N in (2, 5, 16, 256):
        weights = [page["weight"]("grpo", p / 500, N) for p in range(501)]
        assert max(weights) == pytest.approx((N - 1) / N**0.5, rel=1e-4)


def test_what_is_kept_weighs_as_the_page_says():
    """Rejection sampling by enumeration: of N rollouts at most c right ones are kept, drawn at random.

    A rollout is right with probability p, so the score of a right one, d/dp log p, is 1 / p.
    """
    N = 4
    for p, c in itertools.product((0.1, 0.5, 0.9), range(1, N + 1)):
        mean = 0
        for rewards in itertools.product((0, 1), repeat=N):
            right = [i for i, r in enumerate(rewards) if r]
            chance = p ** len(right) * (1 - p) ** (N - len(right))
            choices = list(itertools.combinations(right, min(len(right), c)))
            scores = [sum(rewards[i] / p for i in kept) for kept in choices]
            mean += chance * sum(scores) / len(scores)
        assert page["weightOfKept"](p, N, c) == pytest.approx(mean / c)
    # Its two ends, and the mean over each prompt's right ones.
    assert page["weightOfKept"](0.1, N, 1) == pytest.approx(page["weightOfOrder"](0.1, N))
    assert page["weightOfKept"](0.1, N, N) == pytest.approx(1)
    assert page["weightOfOrder"](0.1, N) == pytest.approx(weight("maxrl_success", 0.1, rollouts=N))


def test_one_pool_of_a_large_batch_is_reinforce():
    """All right rollouts of P prompts in one mean: the weight comes to 1 / (mean p of the batch), the same for each prompt.

    The prompts have the pass rates .2 and .6 by turns. Weight = P E[K / (all successes)] / p, the others counted exactly.
    """
    N, rates = 4, (0.2, 0.6)
    binomial = {
        p: np.array([math.comb(N, K) * p**K * (1 - p) ** (N - K) for K in range(N + 1)])
        for p in rates
    }
    errors = []
    for pairs in (8, 16, 32):
        found = []
        for p in rates:
            others = np.ones(1)
            for rate in rates:
                for _ in range(pairs - (rate == p)):
                    others = np.convolve(others, binomial[rate])
            successes = np.arange(len(others))
            mean = sum(
                chance * (others * K / (K + successes)).sum()
                for K, chance in enumerate(binomial[p])
                if K
            )
            found.append(2 * pairs * mean / p)
        errors.append(np.abs(np.array(found) * np.mean(rates) - 1).max())
    assert errors[0] < 0.1 and errors[1] < 0.6 * errors[0] and errors[2] < 0.6 * errors[1]


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_javascript_says_the_same():
    """What the tests above read as Python is what a browser computes."""
    calls = [("weight", name, p, N) for name in NAMES for p in RATES for N in (2, 16, 1024)]
    calls += [("advantage", name, r, K, 7) for name in NAMES for K in range(8) for r in (0, 1)]
    calls += [(f, name, p, 7) for f in ("noise", "live") for name in NAMES for p in RATES]
    calls += [("sampled", p, 7, 3) for p in RATES]
    calls += [("deviation", K, 7) for K in range(8)]
    calls += [("truncated", p, T) for p in RATES for T in (1, 7, 128)]
    calls += [(name, p, 4) for name in ("weightOfOrder", "weightOfPass", "term") for p in RATES]
    calls += [("weightOfKept", p, 6, c) for p in RATES for c in (1, 2, 6)]
    calls += [("weightOfMany", name, p) for name in NAMES for p in RATES[:-1]]
    script = (
        FORMULAS
        + f"console.log(JSON.stringify({json.dumps(calls)}.map(([f, ...of]) => eval(f)(...of))))"
    )
    said = subprocess.run(
        ["node", "-"], input=script, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(said) == pytest.approx(
        [page[f](*of) for f, *of in calls], rel=1e-12, abs=1e-15
    )


def test_the_page_draws_these_formulas_in_the_colours_of_the_figures():
    methods = dict(re.findall(r'^  (\w+): (\["[^"]+", "#\w+"\]),$', DRAWING, re.M))
    assert {name: tuple(json.loads(row)) for name, row in methods.items()} == {
        name: STYLE[name] for name in NAMES
    }
    assert (
        f'ORDER = "{STYLE["maxrl_order"][1]}"' in DRAWING
        and f'LIKELIHOOD = "{STYLE["supervised"][1]}"' in DRAWING
    )
    assert set(re.findall(r"(?m)^function (\w+)", FORMULAS)) <= set(re.findall(r"(\w+)\(", DRAWING))
    assert not re.search(r"Math\.(log|sqrt|pow|exp)\(", DRAWING), "a number of its own"


class Reader(html.parser.HTMLParser):
    """The tags of a page, [(tag, attributes)]; an end tag that closes another than the last open one fails."""

    EMPTY = {"meta", "link", "input"}

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()


def test_the_page_is_whole():
    """Well-formed, no network, every control has its label, every table its heads, and every link of ours a file."""
    tags = Reader(PAGE).tags
    ids = [found["id"] for _, found in tags if "id" in found]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'byId\("([\w-]+)"\)', DRAWING)) <= set(ids)
    assert not re.search(r"\bsrc=|@import|url\(|fetch\(|XMLHttpRequest|\bimport\b|WebSocket", PAGE)
    labels = {found["for"] for tag, found in tags if tag == "label"}
    assert {found["id"] for tag, found in tags if tag == "input"} == labels
    for tag, found in tags:
        assert tag != "section" or found["aria-labelledby"] in ids
        assert tag != "svg" or found["role"] == "img"
        assert tag != "th" or "scope" in found
        link = found.get("href", "https://")
        assert link.startswith(("https://", "data:,")) or (ROOT / "results" / link).exists(), link
    rows = set(re.findall(r'data-row="(\w+)"', PAGE))
    here = DRAWING.split("const here = {")[1].split("};")[0]
    assert rows == set(re.findall(r"(?m)^    (\w+):", here)) and len(rows) == 12
    assert set(re.findall(r"<code>(\w+)</code>", PAGE)) <= set(ADVANTAGES)
