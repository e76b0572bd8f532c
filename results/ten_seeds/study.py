"""Ten seeds of 9x9 mazes: five methods from two bases, each at a rate of its own."""

from results.lab.runs import evaluation, product

DATA = "--task.directory data/maze/9x9-ten"
# Bases by where their warm-up stops: pass@1 on 64 validation mazes.
BASES = {"weak": ".015", "strong": ".08"}
# The name of an arm, and its options.
ARMS = {
    "maxrl": "--estimator maxrl --prompts 16 --rollouts 32",
    "rare": "--estimator maxrl_rare --prompts 16 --rollouts 32",
    "rounds": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
    "grpo": "--estimator grpo --prompts 16 --rollouts 32",
    "rloo": "--estimator rloo --prompts 16 --rollouts 32",
}
RATES = ("3e-5", "1e-4", "3e-4")
# The best of RATES on seed 100: of three arms from results/mazes, of two from the stage `rates`,
# which is not finished from the strong base.
OWN = {
    "weak": dict.fromkeys(ARMS, "1e-4"),
    "strong": {"maxrl": "3e-4", "grpo": "1e-4", "rloo": "3e-5"},
}
# None of them is a seed of another study.
SEEDS = range(10, 20)
KEPT_STEPS = 20


def warm_ups(base: str, seeds) -> dict:
    """The warm-up of each seed."""
    words = f"train.py maze9_laptop_sft {DATA} --stop-at-pass {BASES[base]} --seed {{seed}}"
    return product(f"{base}/seed{{seed}}/base", words, seed=seeds)


def rl(base: str, arms, rates, seeds) -> dict:
    """1,000 steps from the base of each seed, with a checkpoint every 100."""
    words = (
        f"train.py maze9_laptop {DATA} --steps 1000 --eval-every 100 --save-every 100 "
        f"--init runs/ten_seeds/{base}/seed{{seed}}/base --seed {{seed}} {{arm[1]}} --lr {{rate}}"
    )
    name = f"{base}/seed{{seed}}/{{arm[0]}}-lr{{rate}}"
    return product(name, words, seed=seeds, arm=arms, rate=rates)


def seed(base: str, number: int) -> dict:
    """All arms of one seed that have a rate."""
    made = warm_ups(base, [number])
    for arm, rate in OWN[base].items():
        made |= rl(base, [(arm, ARMS[arm])], [rate], [number])
    return made


# 1: the rates of the two further arms, on seed 100.
RUNS = {"rates": {}}
for base in BASES:
    searched = [(arm, ARMS[arm]) for arm in ("rare", "rounds")]
    RUNS["rates"] |= warm_ups(base, [100]) | rl(base, searched, RATES, [100])
# 2: the comparison, a stage a seed and base, so that what is finished is paired.
for number in SEEDS:
    for base in BASES:
        RUNS[f"{base}{number}"] = seed(base, number)
# 3: is it the batch? Four times the prompts, from the weak bases of four seeds.
LARGE = [(f"{arm}-64", ARMS[arm].replace("16", "64", 1)) for arm in ("maxrl", "grpo")]
RUNS["batch"] = warm_ups("weak", range(10, 14)) | rl("weak", LARGE, ["1e-4"], range(10, 14))


def tested_models(base: str, number: int, how: str) -> list[str]:
    """The base and the last checkpoint of each arm."""
    models = {"base": f"ten_seeds/{base}/seed{{seed}}/base"}
    for arm, rate in OWN[base].items():
        models[arm] = f"ten_seeds/{base}/seed{{seed}}/{arm}-lr{rate}"
    return evaluation(how, models, seed=[number])


TESTS = {}
for base in BASES:
    for number in SEEDS:
        name = f"{base}{number}"
        TESTS[f"{name}-test.json"] = tested_models(base, number, "--prompts 512 --samples 64")
        TESTS[f"{name}-512.json"] = tested_models(base, number, "--prompts 128 --samples 512")
