"""13x13 mazes to the end of learning: MaxRL, rounds, GRPO with and without a penalty, and what
others do: RLOO, PKPO, DAPO's and Reinforce-Ada's sampling."""

from results.lab.data import evaluations, runs
from results.lab.runs import evaluation, product
from results.lab.tables import pass_columns, table
from results.maze13.study import SFT, SMALL

SIZE13 = "--task.size 13 --task.directory data/maze/13x13-2048 --max-response 40"
LARGE = f"{SFT} {SIZE13} --stop-at-pass .015 --steps 1000 --init runs/maze13_end/seed{{seed}}/small"
STEPS, EVERY = 1500, 100
RL = (
    f"{{method[2]}} maze9_laptop {SIZE13} {{method[1]}} --optimizer muon --lr {{rate}} "
    "--seed {seed} --init runs/maze13_end/seed{seed}/base --steps {method[3]} --save-every 300 "
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
    "maxrl-n128": "--estimator maxrl --prompts 16 --rollouts 128",
    "grpo-n128": "--estimator grpo --prompts 16 --rollouts 128",
    "rloo": "--estimator rloo --prompts 16 --rollouts 32",
    "pkpo-k8": "--estimator pkpo --estimator.k 8 --prompts 16 --rollouts 32",
    "dapo": "--estimator grpo --prompts 160 --rollouts 32",
    "ada": "--estimator reinforce --no-verdict rollout --prompts 32 --rollouts 32",
}
# What is compared on six seeds or more, all others on three.
PRIMARY = ("maxrl", "grpo")
PROGRAMS = {name: f"results/maze13_end/neighbours.py {name}" for name in ("dapo", "ada")}
# DAPO's has about as many rollouts then as rounds of 32 prompts after 1,500.
OTHER_STEPS = {"maxrl-n128": 900, "grpo-n128": 900, "dapo": 600}
# A ladder: a search goes up and down from its middle until both neighbours of the best are worse.
# Of AdamW's part; the matrices have four times it.
RATES = ("2.5e-5", "5e-5", "1e-4", "2e-4", "4e-4")
SEARCHED = 201
# None is a seed of another study. Six are promised, two are added if time allows.
SEEDS = (220, 221, 222, 223, 224, 225, 226, 227)
FEW = SEEDS[:3]
KS = (1, 8)
WHEN = (500, 900)
KEPT_STEPS = 50


def base_of(seed: int) -> dict:
    """The base of a seed, and the 9x9 model that it starts from."""
    small = product("seed{seed}/small", SMALL, seed=[seed])
    return small | product("seed{seed}/base", LARGE, seed=[seed])


def arms_at(seed: int, name: str, rates) -> dict:
    """A method at these rates from the base of a seed."""
    steps = OTHER_STEPS.get(name, STEPS)
    method = [(name, METHODS[name], PROGRAMS.get(name, "train.py"), steps)]
    return product("seed{seed}/{method[0]}-lr{rate}", RL, seed=[seed], rate=rates, method=method)


# A stage of the search for each method, so that it can be made in parts.
RUNS = {f"search-{name}": base_of(SEARCHED) | arms_at(SEARCHED, name, RATES) for name in METHODS}
# {method: rate} by pass@1 + pass@8 at the end of the search.
BEST = {"maxrl": "2e-4"}
TESTS: dict[str, list[str]] = {}
for seed in SEEDS:
    models = {"base": f"maze13_end/seed{seed}/base"}
    RUNS |= {f"bases{seed}": base_of(seed), f"seed{seed}": base_of(seed)}
    for name, rate in BEST.items():
        if name in PRIMARY or seed in FEW:
            RUNS[f"seed{seed}"] |= arms_at(seed, name, [rate])
            models[name] = f"maze13_end/seed{seed}/{name}-lr{rate}"
    TESTS[f"test-seed{seed}.json"] = evaluation("--prompts 2048 --samples 64", models)


def tables():
    """The search: every arm of its seed on validation mazes."""
    rows = []
    for arm, seeds in sorted(runs("maze13_end").items()):
        if SEARCHED in seeds and "-lr" in arm:
            curves = [evaluations(seeds[SEARCHED], k) for k in KS]
            steps = len(curves[0]) * EVERY
            cells = []
            for at in (*WHEN, steps):
                for curve in curves:
                    # Some runs have fewer steps.
                    cells.append(f"{curve[at // EVERY - 1]:.3f}" if at <= steps else "")
            rows.append([arm, steps, *cells])
    times = [*(f"{at} steps" for at in WHEN), "the end"]
    columns = [f"{name}, {at}" for at in times for name in pass_columns(KS)]
    table([f"search, seed {SEARCHED}, validation", "steps", *columns], rows)
