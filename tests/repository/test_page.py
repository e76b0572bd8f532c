"""The formulas of results/page.html give what maxrl/advantages/formulas.py gives."""

import itertools
import math
import re
from types import SimpleNamespace

import pytest
import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl.analysis.plots import STYLE
from tests import ROOT
from tests.helpers.tensors import F64, close, seeded

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
source = (ROOT / "results/page.html").read_text()
code, drawing = re.findall(r"(?s)<script.*?>(.*?)</script>", source)
for form, python in PYTHON.items():
    code = re.sub(form, python, code, flags=re.M)
Math = SimpleNamespace(log=math.log, sqrt=math.sqrt, min=min)
page = {"Math": Math, "Infinity": math.inf}
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


def shown(name, group, T):
    """The page's advantages of a group with any rewards."""
    ordered = sorted(group.tolist())
    N = len(ordered)
    values = [page["advantageOfReward"](name, r, ordered, N, T) for r in group.tolist()]
    return torch.tensor(values, dtype=F64)


def groups():
    """Groups of 2 to 32 rollouts: of the page's values, in which many are equal, and of any."""
    values = torch.tensor([0, 0.1, 0.3, 0.6, 1], dtype=F64)
    random = seeded()
    for N in (2, 3, 4, 8, 17, 32):
        for _ in range(8):
            yield values[torch.randint(5, (N,), generator=random)]
        yield torch.rand(N, generator=random, dtype=F64)
        yield values[[0]].expand(N)
        yield values[[2]].expand(N)
        yield (torch.arange(N) == N - 1).to(F64)


@pytest.mark.parametrize("group", groups())
def test_the_advantages_of_any_rewards(group):
    def ours(name, **options):
        return ADVANTAGES[name](group[None], **options)[0]

    N = len(group)
    for name in ("rloo", "grpo", "tailrl"):
        close(shown(name, group, 1), ours(name), 1e-9)
    for T in {1, 2, N // 2, N - 1, N} - {0}:
        close(shown("maxrl_order", group, T), ours("maxrl_order", order=T, thresholds=True), 1e-9)
    close(shown("maxrl_order", group, 1), ours("rloo"), 1e-9)
    mean = group.mean()
    divided = (group - mean) / mean if group.unique().numel() > 1 else torch.zeros(N, dtype=F64)
    close(shown("divided", group, 1), divided, 1e-9)
    # As the page says: a gap that m rollouts clear counts N / m times.
    tail = shown("tailrl", group, 1)
    for r, after in itertools.pairwise(group.unique().tolist()):
        counted = tail[group == after][0] - tail[group == r][0]
        clear = (group >= after).sum().item()
        assert counted.item() == pytest.approx((after - r) * N / clear)


def test_a_group_has_the_shares_that_are_drawn():
    """Of 1,000 rollouts, evenly spread; without a chance for any reward all get the lowest."""
    for chances in ([8, 4, 4, 2, 2], [0, 0, 20, 0, 0], [1, 0, 3, 0, 1], [0, 0, 0, 0, 7]):
        places = [page["drawn"]((i + 0.5) / 1000, chances) for i in range(1000)]
        expected = [1000 * chance / sum(chances) for chance in chances]
        assert [places.count(j) for j in range(5)] == pytest.approx(expected, abs=1)
    assert page["drawn"](0.5, [0] * 5) == 0


def test_what_is_kept_weighs_as_the_page_says():
    """Of N rollouts at most c right ones are kept, as rejection sampling does: by enumeration of
    how many are right, each with the score 1 / p."""
    N = 5
    for p, c in itertools.product((0.1, 0.5, 0.9), range(1, N + 1)):
        chance = [math.comb(N, K) * p**K * (1 - p) ** (N - K) for K in range(N + 1)]
        mean = sum(chance[K] * min(K, c) / p / c for K in range(N + 1))
        assert page["weightOfKept"](p, N, c) == pytest.approx(mean)
    assert page["weightOfKept"](0.1, N, 1) == pytest.approx(
        weight("maxrl_success", 0.1, rollouts=N)
    )
    assert page["weightOfKept"](0.1, N, N) == pytest.approx(weight("reinforce", 0.1))


def colours(block):
    return dict(re.findall(r"--(\w+): (#\w+)", block))


light, dark = (colours(block) for block in re.findall(r"(?s):root \{(.*?)\}", source))


def test_the_look_is_that_of_the_figures():
    methods = {name: value for name, value in light.items() if name in STYLE}
    assert len(methods) == 9
    assert methods == {name: STYLE[name][1] for name in methods}
    for name, label in re.findall(r'(?m)^  (\w+): "(.*)",$', drawing):
        assert STYLE[name][0] == label


def contrast(one, other):
    """The ratio of luminances by which WCAG 2 judges what can be read."""

    def luminance(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    pair = sorted([luminance(one), luminance(other)])
    return pair[1] / pair[0]


def test_light_and_dark_can_be_read():
    """Text has a contrast of 4.5; in the dark, where the colours are the page's own, lines 3."""
    for scheme in (light, light | dark):
        for text, back in itertools.product(("ink", "soft", "link"), ("back", "pale")):
            assert contrast(scheme[text], scheme[back]) >= 4.5, text
        assert contrast("#ffffff", scheme["right"]) >= 4.5
    for name in STYLE:
        assert name not in light or contrast((light | dark)[name], dark["back"]) >= 3, name
    # No colour of the page stands elsewhere, where it would be the same in both.
    rest = re.sub(r"(?s):root \{.*?\}", "", source)
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", rest)) <= {"#fff"}
