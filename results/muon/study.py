"""AdamW and Muon on 9x9 mazes, for MaxRL, rounds and GRPO, each at its own best rate."""

from results.lab.runs import product

DATA = "--task.directory data/maze/9x9-ten"
BASES = {"strong": ".08", "weak": ".015"}
# None is a seed of another study; rates are chosen on the first.
SEEDS = (301, 302, 303)
METHODS = {
    "maxrl": "--estimator maxrl --prompts 16 --rollouts 32",
    "rounds": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
    "grpo": "--estimator grpo --prompts 16 --rollouts 32 --beta .04",
}
# The rate of AdamW, alone or for what Muon leaves to it, and Muon's as a multiple.
OPTIMIZERS = {
    "adamw-1e-4": "--lr 1e-4",
    "adamw-2e-4": "--lr 2e-4",
    "adamw-3e-4": "--lr 3e-4",
    "adamw-6e-4": "--lr 6e-4",
    "muon-1e-4-x4": "--optimizer muon --lr 1e-4 --muon-lr-scale 4",
    "muon-3e-4-x1": "--optimizer muon --lr 3e-4 --muon-lr-scale 1",
    "muon-3e-4-x2": "--optimizer muon --lr 3e-4 --muon-lr-scale 2",
    "muon-3e-4-x4": "--optimizer muon --lr 3e-4 --muon-lr-scale 4",
    "muon-3e-4-x8": "--optimizer muon --lr 3e-4 --muon-lr-scale 8",
}
WARM_UP = f"train.py maze9_laptop_sft {DATA} --stop-at-pass {{base[1]}} --seed {{seed}}"
RL = (
    f"train.py maze9_laptop {DATA} {{method[1]}} {{optimizer[1]}} --seed {{seed}} "
    "--init runs/muon/{base[0]}/seed{seed}/base "
    "--steps 350 --eval-every 50 --eval-prompts 256 --eval-samples 16 --eval-k 1,8"
)


def with_each_optimizer(base: str, seeds) -> dict:
    """The bases of these seeds, and every method and optimizer from there."""
    values = {"base": [(base, BASES[base])], "seed": seeds}
    runs = product("{base[0]}/seed{seed}/base", WARM_UP, **values)
    name = "{base[0]}/seed{seed}/{method[0]}-{optimizer[0]}"
    arms = {"method": METHODS.items(), "optimizer": OPTIMIZERS.items()}
    return runs | product(name, RL, **values, **arms)


RUNS = {base: with_each_optimizer(base, SEEDS[:1]) for base in BASES}
KEPT_STEPS = 20
