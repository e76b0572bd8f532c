"""13x13 mazes, where guesses solve little: MaxRL, rounds and GRPO with Muon, each at its best."""

from results.lab.runs import product

SIZE9 = "--task.directory data/maze/9x9-ten"
SIZE13 = "--task.size 13 --task.directory data/maze/13x13 --max-response 40"
# A 9x9 model of 400 batches, then demonstrations of 13x13 until pass@1 is .015 on 64 mazes.
SFT = "train.py maze9_laptop_sft --optimizer muon --seed {seed}"
SMALL = f"{SFT} {SIZE9} --stop-at-pass 0 --eval-every 100"
LARGE = f"{SFT} {SIZE13} --stop-at-pass .015 --steps 1000 --init runs/maze13/seed{{seed}}/small"
RL = (
    f"train.py maze9_laptop {SIZE13} {{method[1]}} --optimizer muon --lr {{rate}} --seed {{seed}} "
    "--init runs/maze13/seed{seed}/base --steps 350 "
    "--eval-every 50 --eval-prompts 256 --eval-samples 16 --eval-k 1,8"
)
METHODS = {
    "maxrl": "--estimator maxrl --prompts 16 --rollouts 32",
    "maxrl-kl.04": "--estimator maxrl --prompts 16 --rollouts 32 --beta .04",
    "rounds": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
    "grpo-kl.04": "--estimator grpo --prompts 16 --rollouts 32 --beta .04",
    "grpo": "--estimator grpo --prompts 16 --rollouts 32",
}
# Of AdamW's part; the matrices have four times it.
RATES = ("5e-5", "1e-4", "2e-4")
# None is a seed of another study; rates are chosen on the first.
SEARCHED = 201
SEEDS = (210, 211, 212, 213, 214, 215)
KS = (1, 8)
KEPT_STEPS = 20


def warmed(seeds) -> dict:
    """The bases of these seeds, and the 9x9 models that they start from."""
    small = product("seed{seed}/small", SMALL, seed=seeds)
    return small | product("seed{seed}/base", LARGE, seed=seeds)


def arms(seeds, methods, rates) -> dict:
    """These methods at these rates from the base of each seed."""
    chosen = [(name, METHODS[name]) for name in methods]
    return product("seed{seed}/{method[0]}-lr{rate}", RL, seed=seeds, rate=rates, method=chosen)


RUNS = {
    "search": warmed([SEARCHED])
    | arms([SEARCHED], ["maxrl", "grpo-kl.04", "maxrl-kl.04"], RATES)
    | arms([SEARCHED], ["rounds", "grpo"], RATES[:2])
}
