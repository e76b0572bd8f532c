"""13x13 mazes with partial credit, from bases at and below guessing: TailRL and its opponents."""

from results.lab.data import evaluations, runs
from results.lab.runs import evaluation, product
from results.lab.tables import label_of, table
from results.maze13.study import SFT, SMALL

SIZE13 = "--task.size 13 --task.directory data/maze/13x13-2048 --max-response 40"
# So many batches of demonstrations of 13x13 after the 9x9 model. On seed 201 pass@1 was .0010 after
# 12, .0045 after 30 (a guess has .003) and .017 after about 320.
BASES = (12, 30)
LARGE = (
    f"{SFT} {SIZE13} --stop-at-pass 0 --steps {{batches}} --eval-every 0 "
    "--init runs/tail/seed{seed}/small"
)
STEPS, EVERY = 600, 100
RL = (
    f"train.py maze9_laptop {SIZE13} {{method[1]}} --prompts 16 --rollouts {{rollouts}} "
    "--optimizer muon --lr {rate} --seed {seed} --init runs/tail/seed{seed}/base{batches} "
    f"--steps {STEPS} --eval-every {EVERY} --eval-prompts 256 --eval-samples 16 --eval-k 1,8"
)
PARTIAL = "--task.reward progress --estimator"
METHODS = {
    "tailrl": f"{PARTIAL} tailrl",
    "grpo": f"{PARTIAL} grpo",
    "rloo": f"{PARTIAL} rloo",
    "pkpo-k4": f"{PARTIAL} pkpo --estimator.k 4 --thresholds true",
    "maxrl": "--estimator maxrl",
}
# At the best rate of k = 4.
OTHER_K = {f"pkpo-k{k}": f"{PARTIAL} pkpo --estimator.k {k} --thresholds true" for k in (2, 8)}
# Of AdamW's part; the matrices have four times it.
RATES = ("5e-5", "1e-4", "2e-4")
SEARCHED, SEARCHED_BASE, SEARCHED_ROLLOUTS = 201, 30, 32
# None is a seed of another study.
SEEDS = (230, 231, 232, 233, 234)
KS = (1, 8)
KEPT_STEPS = 20


def bases_of(seed: int, batches) -> dict:
    """The bases of a seed, and the 9x9 model that they start from."""
    small = product("seed{seed}/small", SMALL, seed=[seed])
    return small | product("seed{seed}/base{batches}", LARGE, seed=[seed], batches=batches)


def arms_from(seed: int, batches: int, rollouts: int, methods: dict, rates) -> dict:
    """Methods at rates from a base."""
    name = "seed{seed}/b{batches}-n{rollouts}-{method[0]}-lr{rate}"
    values = {"seed": [seed], "batches": [batches], "rollouts": [rollouts], "rate": rates}
    return product(name, RL, **values, method=list(methods.items()))


SEARCH = (SEARCHED, SEARCHED_BASE, SEARCHED_ROLLOUTS)
RUNS = {"search": bases_of(SEARCHED, [SEARCHED_BASE]) | arms_from(*SEARCH, METHODS, RATES)}
# {method: rate} by pass@1 + pass@8 at the end of the search; stages of seeds once it is known.
BEST: dict[str, str] = {}
TESTS: dict[str, list[str]] = {}
for seed in SEEDS if BEST else ():
    for batches in BASES:
        for rollouts in (32, 16):
            stage = bases_of(seed, [batches])
            models = {"base": f"tail/seed{seed}/base{batches}"}
            for name, rate in BEST.items():
                made = arms_from(seed, batches, rollouts, {name: (METHODS | OTHER_K)[name]}, [rate])
                stage |= made
                models[name] = f"tail/{next(iter(made))}"
            where = f"b{batches}-n{rollouts}"
            RUNS[f"{where}-seed{seed}"] = stage
            asked = f"--task.reward progress --prompts 512 --samples 64 --k 1,8,64 {SIZE13}"
            TESTS[f"test-{where}-seed{seed}.json"] = evaluation(asked, models)


def tables():
    """The search: every arm of its seed on validation mazes."""
    rows = []
    for arm, seeds in sorted(runs("tail", steps=STEPS).items()):
        last = [f"{evaluations(seeds[SEARCHED], k)[-1]:.3f}" for k in KS]
        row = seeds[SEARCHED][-1]
        best = [f"{row[key]:.3f}" if key in row else "" for key in ("eval/best@1", "eval/best@8")]
        rows.append([label_of(arm), *last, *best])
    table([f"search, seed {SEARCHED}, validation", "pass@1", "pass@8", "best@1", "best@8"], rows)
