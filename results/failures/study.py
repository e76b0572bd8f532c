"""When do runs of MaxRL fail on 9x9 mazes? Ten weak bases, four arms, two rates; and one cure."""

from results.lab.runs import from_bases

DATA = "--task.directory data/maze/9x9-ten"
SFT = f"train.py maze9_laptop_sft {DATA} --stop-at-pass .015"
RL = f"maze9_laptop {DATA} --steps 300 --schedule constant --eval-every 50"
# The name of an arm, and its options. Prompts x rollouts are 512 but in rounds of 32 prompts.
ARMS = {
    "maxrl-16x32": "--estimator maxrl --prompts 16 --rollouts 32",
    "maxrl-32x16": "--estimator maxrl --prompts 32 --rollouts 16",
    "rounds-16": "--estimator maxrl_rare --prompts 16 --rollouts 8,8,16",
    "rounds-32": "--estimator maxrl_rare --prompts 32 --rollouts 8,8,16",
}
# What ten_seeds does not have at 1e-4.
SMALL = ("maxrl-32x16", "rounds-16")
EVERY = "results/failures/every_round.py"
CURE = f"--estimator {EVERY}:centered --prompts 16 --rollouts 8,8,16"
KEPT_STEPS = 10


def at_rates(program: str, arms: dict[str, str], rates, seeds) -> dict:
    """The bases of the seeds, and from there every arm at every rate."""
    options = {}
    for arm, words in arms.items():
        for rate in rates:
            options[f"{arm}-lr{rate}"] = f"{words} --lr {rate}"
    return from_bases("failures", SFT, f"{program} {RL}", options, seeds)


RUNS = {
    # 1: how many of the runs fail. At 1e-4 those of two arms are in ten_seeds.
    "count": at_rates("train.py", ARMS, ["2e-4"], range(10, 20)),
    "slow": at_rates("train.py", {arm: ARMS[arm] for arm in SMALL}, ["1e-4"], range(10, 20)),
    # 2: Eq. (10) in rounds, where rounds fail.
    "cure": at_rates("train.py", {"rounds-16": ARMS["rounds-16"]}, ["2e-4", "3e-4"], range(10, 14))
    | at_rates(EVERY, {"every-16": CURE}, ["2e-4", "3e-4"], range(10, 14)),
}
