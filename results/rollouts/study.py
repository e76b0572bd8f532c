"""The paper's Figure 3: more rollouts a prompt, for MaxRL and for GRPO with a KL penalty."""

import numpy as np

from maxrl.analysis.table import coverage
from results.lab.data import paper, tested
from results.lab.figures import panel, penalised, seed_curves, theirs
from results.lab.runs import evaluation, product
from results.lab.tables import label_of, leads, pass_columns, summary
from results.maze13.study import BEST, KS, METHODS, RL, SEEDS

# The first seeds of the 13x13 mazes, whose models with 32 rollouts are those of that study.
SEEDS = SEEDS[:3]
ROLLOUTS = (4, 16, 128)
KNOWN = 32
SCALED = ("maxrl", "grpo-kl.04")
# Added when the others with 4 rollouts were known: is it the penalty?
CONTROL = "maxrl-kl.04"
KEPT_STEPS = 20
# Looked at after the others were known: the paper's claim is about large k.
EXPLORED = (*KS, 64)


def with_rollouts(name: str, count: int) -> dict:
    """A method with so many rollouts from the base of each seed, at its best rate with 32."""
    words = METHODS[name].replace(f"--rollouts {KNOWN}", f"--rollouts {count}")
    values = {"rate": [BEST[name]], "method": [(f"{name}-{count}", words)]}
    return product("seed{seed}/{method[0]}", RL, seed=SEEDS, **values)


RUNS = {str(count): {} for count in ROLLOUTS}
MODELS = {}
for name, counts in {SCALED[0]: ROLLOUTS, SCALED[1]: ROLLOUTS, CONTROL: (4,)}.items():
    for count in counts:
        RUNS[str(count)] |= with_rollouts(name, count)
        MODELS[f"{name}-{count}"] = f"rollouts/seed{{seed}}/{name}-{count}"
CONTROLS = {f"{CONTROL}-4": MODELS.pop(f"{CONTROL}-4")}
HOW = "--prompts 256 --samples 64"
TESTS = {
    "test.json": evaluation(HOW, MODELS, seed=SEEDS),
    "control-test.json": evaluation(HOW, CONTROLS, seed=SEEDS),
}


def tested_rollouts(ks=KS) -> dict[str, np.ndarray]:
    """{arm: pass@k (ks, seeds)} on the test, with 32 rollouts from the study of 13x13 mazes."""
    found = coverage(tested("rollouts/test.json"), ks)
    found |= coverage(tested("rollouts/control-test.json"), ks)
    known = coverage(tested("maze13/test.json"), ks)
    found |= {f"{name}-{KNOWN}": known[name] for name in (*SCALED, CONTROL)}
    found["base"] = known["base"]
    return {arm: values.mean(1)[: len(SEEDS)].T for arm, values in found.items()}


def arms_by_rollouts(name: str) -> list[str]:
    """The arms of a method, from few rollouts to many."""
    return [f"{name}-{count}" for count in sorted([*ROLLOUTS, KNOWN])]


def tables():
    """Every number of rollouts; MaxRL minus GRPO at each; what each method gains from 4 to 128."""
    found = tested_rollouts()
    names = [
        "base",
        *arms_by_rollouts(SCALED[0]),
        *arms_by_rollouts(SCALED[1]),
        f"{CONTROL}-4",
        f"{CONTROL}-{KNOWN}",
    ]
    summary("test, 95 %", pass_columns(KS), {arm: found[arm] for arm in names})
    found = tested_rollouts(EXPLORED)
    gaps = {}
    for own, other in zip(*map(arms_by_rollouts, SCALED)):
        gaps[f"{own.rpartition('-')[2]} rollouts"] = found[own] - found[other]
    columns = pass_columns(EXPLORED)
    leads(f"{label_of(SCALED[0])} minus {label_of(SCALED[1])}, test", columns, gaps)
    gains = {}
    for few, many in ((4, 128), (4, 16), (16, 128)):
        for name in SCALED:
            before, after = (np.log(found[f"{name}-{count}"]) for count in (few, many))
            gains[f"{label_of(name)}, {few} to {many}"] = np.log(before / after)
        own, other = list(gains.values())[-2:]
        gains[f"MaxRL minus GRPO, {few} to {many}"] = own - other
    # With the penalty for both, which MaxRL has with 4 rollouts and with 32 alone.
    logs = {arm: np.log(-np.log(found[arm])) for arm in found}
    both = [logs[f"{name}-4"] - logs[f"{name}-{KNOWN}"] for name in (CONTROL, SCALED[1])]
    gains[f"MaxRL, kl.04 minus GRPO, kl.04, 4 to {KNOWN}"] = both[0] - both[1]
    leads("log of the ratio of -log pass@k", columns, gains)


def gains_panel(title: str, k: int, lines: list[dict], base: float) -> dict:
    """A panel of -log pass@k against the rollouts of a prompt."""
    axes = {"xscale": "log", "yscale": "log", "xticks": [4, 8, 16, 32, 64, 128]}
    axes["yticks"] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]
    axes["levels"] = {f"{base:.3f}": "base"}
    return panel(f"{title}, pass@{k}", "rollouts a prompt", f"-log pass@{k}", lines, **axes)


def equal_decades(panels: list[dict]):
    """Gives panels with logarithmic axes as many decades each, so that slopes can be compared."""
    limits = []
    for one in panels:
        values = [np.ravel(line.get("seeds", line["y"])) for line in one["lines"]]
        values = np.concatenate([*values, [float(level) for level in one["levels"]]])
        limits.append((values.min(), values.max()))
    half = 1.1 * max(high / low for low, high in limits) ** 0.5
    for one, (low, high) in zip(panels, limits):
        middle = (low * high) ** 0.5
        one["ylim"] = (middle / half, middle * half)


def figure3() -> dict:
    """-log pass@k against the rollouts of a prompt, the paper's and ours."""
    panels = []
    for k in (1, 128):
        curves = paper(3)[f"k={k}"]
        base = curves["base"][1][0]
        lines = theirs({name: curves[name] for name in ("grpo", "maxrl")})
        panels.append(gains_panel("paper: 17x17 mazes", k, lines, base))
    found = tested_rollouts()
    for i, k in enumerate(KS):
        lines = []
        for name in SCALED:
            values = -np.log([found[arm][i] for arm in arms_by_rollouts(name)])  # (rollouts, seeds)
            line = seed_curves(name, sorted([*ROLLOUTS, KNOWN]), values.T)
            lines.append(penalised(line, "grpo") if "-kl" in name else line)
        base = -np.log(found["base"][i].mean())
        panels.append(gains_panel("ours: 13x13 mazes (reduced scale)", k, lines, base))
    for column in (panels[::2], panels[1::2]):
        equal_decades(column)
    return {
        "title": "Behind with 4 rollouts, MaxRL catches up with GRPO with a KL penalty",
        "caption": "Ours: .3M parameters, Muon, weak bases, 350 steps of 16 prompts, GRPO with a "
        "KL penalty of .04 (open markers); mean of 3 seeds and each of them (thin). "
        "Paper: 9,000 steps of 256 prompts, GRPO without a penalty",
        "panels": panels,
    }


FIGURES = {"figure3": figure3}
