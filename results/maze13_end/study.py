"""13x13 mazes to the end of learning: MaxRL, rounds, and GRPO with and without a penalty."""

from results.lab.data import evaluations, runs
from results.lab.runs import evaluation, product
from results.lab.tables import pass_columns, table
from results.maze13.study import SFT, SMALL

SIZE13 = "--task.size 13 --task.directory data/maze/13x13-2048 --max-response 40"
LARGE = f"{SFT} {SIZE13} --stop-at-pass .015 --steps 1000 --init runs/maze13_end/seed{{seed}}/small"
STEPS, EVERY = 1500, 100
RL = (
    f"train.py maze9_laptop {SIZE13} {{method[1]}} --optimizer muon --lr {{rate}} --seed {{seed}} "
    f"--init runs/maze13_end/seed{{seed}}/base --steps {STEPS} --save-every 300 "
    f"--eval-every {EVERY} --eval-prompts 256 --eval-samples 16 --eval-k 1,8"
)
METHODS = {
    "maxrl": "--estimator maxrl --prompts 16 --rollouts 32",
    "grpo": "--estimator grpo --prompts 16 --rollouts 32",
    "grpo-k3.04": "--estimator grpo --prompts 16 --rollouts 32 --beta .04",
    "grpo-k2.04": "--estimator grpo --prompts 16 --rollouts 32 --beta .04 --kl k2",
    "grpo-k3.01": "--estimator grpo --prompts 16 --rollouts 32 --beta .01",
    "grpo-k2.01": "--estimator grpo --prompts 16 --rollouts 32 --beta .01 --kl k2",
    "rounds16": "--estimator maxrl_rare --prompts 16 --rollouts 8,8,16",
    "rounds32": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
    "grpo32": "--estimator grpo --prompts 32 --rollouts 32",
}
# Of AdamW's part; the matrices have four times it. GRPO's were half of MaxRL's after 350 steps.
RATES = {name: ("1e-4", "2e-4", "4e-4") for name in METHODS}
RATES |= {name: ("5e-5", "1e-4", "2e-4") for name in ("grpo", "grpo32")}
# At the best rate of .04 alone; filled in when that is known.
RATES |= {"grpo-k3.01": (), "grpo-k2.01": ()}
SEARCHED = 201
# None is a seed of another study. Six are promised, two are added if time allows.
SEEDS = (220, 221, 222, 223, 224, 225, 226, 227)
KS = (1, 8)
KEPT_STEPS = 50


def base_of(seed: int) -> dict:
    """The base of a seed, and the 9x9 model that it starts from."""
    small = product("seed{seed}/small", SMALL, seed=[seed])
    return small | product("seed{seed}/base", LARGE, seed=[seed])


def arms_at(seed: int, name: str, rates) -> dict:
    """A method at these rates from the base of a seed."""
    method = [(name, METHODS[name])]
    return product("seed{seed}/{method[0]}-lr{rate}", RL, seed=[seed], rate=rates, method=method)


# A stage of the search for each method, so that it can be made in parts.
RUNS = {
    f"search-{name}": base_of(SEARCHED) | arms_at(SEARCHED, name, RATES[name]) for name in METHODS
}
# {method: rate} by pass@1 + pass@8 at the end of the search; a stage a seed once it is known.
BEST: dict[str, str] = {}
TESTS: dict[str, list[str]] = {}
for seed in SEEDS:
    models = {"base": f"maze13_end/seed{seed}/base"}
    stage = base_of(seed)
    for name, rate in BEST.items():
        stage |= arms_at(seed, name, [rate])
        models[name] = f"maze13_end/seed{seed}/{name}-lr{rate}"
    if BEST:
        RUNS[f"seed{seed}"] = stage
        TESTS[f"test-seed{seed}.json"] = evaluation("--prompts 2048 --samples 64", models)


def tables():
    """The search: every arm of its seed on validation mazes."""
    rows = []
    for arm, seeds in sorted(runs("maze13_end", steps=STEPS).items()):
        curves = [evaluations(seeds[SEARCHED], k) for k in KS]
        cells = [f"{curve[at]:.3f}" for at in (4, 8, -1) for curve in curves]
        rows.append([arm, *cells])
    columns = [f"{name}, {at} steps" for at in (500, 900, STEPS) for name in pass_columns(KS)]
    table([f"search, seed {SEARCHED}, validation", *columns], rows)
