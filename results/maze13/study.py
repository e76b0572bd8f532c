"""13x13 mazes, where guesses solve little: MaxRL and GRPO, each at its best."""

from results.lab.runs import product

SIZE9 = "--task.directory data/maze/9x9-ten"
SIZE13 = "--task.size 13 --task.directory data/maze/13x13"
# A finished 9x9 model, then demonstrations of 13x13 until pass@1 is .015 on 64 validation mazes.
SMALL = f"train.py maze9_laptop_sft {SIZE9} --stop-at-pass 0 --eval-every 100 --seed {{seed}}"
LARGE = (
    f"train.py maze9_laptop_sft {SIZE13} --stop-at-pass .015 --steps 1500 --max-response 64 "
    "--init runs/maze13/seed{seed}/small --seed {seed} --lr {rate}"
)
# None is a seed of another study.
SEARCHED = (201, 202)


def warmed_from_small(seeds, rate: str = "1e-3") -> dict:
    """The bases of these seeds, and the 9x9 models that they start from."""
    small = product("seed{seed}/small", SMALL, seed=seeds)
    return small | product("seed{seed}/base", LARGE, seed=seeds, rate=[rate])


RUNS = {"bases": warmed_from_small(SEARCHED)}
KEPT_STEPS = 20
