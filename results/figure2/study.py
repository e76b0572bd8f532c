"""Figure 2 on 1,000 drawn classes, every method at a learning rate of its own."""

IMAGES = ["train.py", "images_laptop", "--task.directory", "glyphs/1000x32"]
EVERY = ["--eval-prompts", "2500", "--eval-k", "1,128", "--save-every-minutes", "3"]
EXPECTED = ["results/figure2/expected.py", *IMAGES[1:], "--estimator", "supervised"]
METHODS = {
    "supervised": [*IMAGES, "--estimator", "supervised", "--rollouts", "1"],
    "maxrl-1024": [*IMAGES, "--rollouts", "1024"],
    "maxrl-4096": [*IMAGES, "--rollouts", "4096"],
    "maxrl-16384": [*IMAGES, "--rollouts", "16384"],
    "expected-1023": [*EXPECTED, "--rollouts", "1"],
}
RATES = (0.1, 0.3, 1.0, 3.0)
SEEDS = (0, 1, 2)
# The best rate of seed 100: pass@1 of the validation images after the last step.
# Those of 16,384 draws are not finished.
OWN = {"supervised": 3.0, "maxrl-1024": 0.3, "maxrl-4096": 1.0, "expected-1023": 0.3}


def run(method: str, rate: float, seed: int, steps: int = 2000, warm_up: int = 100) -> dict:
    """Return {name: words} of one run; a warm-up or length other than usual is in its name."""
    name = f"seed{seed}/{method}-lr{rate}"
    if (steps, warm_up) != (2000, 100):
        name += f"-{warm_up}of{steps}"
    length = ["--steps", str(steps), "--warmup-steps", str(warm_up), "--eval-every", "100"]
    chosen = ["--lr", str(rate), "--seed", str(seed)]
    return {name: [*METHODS[method], *length, *chosen, *EVERY]}


def runs(methods, rates, seeds, **length) -> dict:
    """Return {name: words} of the product."""
    made = {}
    for seed in seeds:
        for method in methods:
            for rate in rates:
                made |= run(method, rate, seed, **length)
    return made


def own() -> dict:
    """Return the runs of every method at its own rate."""
    made = {}
    for method, rate in OWN.items():
        for seed in SEEDS:
            made |= run(method, rate, seed)
    return made


RUNS = {
    # 1: seed 100, on validation images.
    "rates": runs(METHODS, RATES, [100]),
    # 2: the comparison; then all methods at the rate that was cross-entropy's in images_1000.
    "own": own(),
    "same": runs(["supervised", "maxrl-1024", "expected-1023"], [3.0], SEEDS),
    # 3: the paper's warm-up in images a class at its rate, and a tenth of it.
    "paper": runs(["supervised", "maxrl-1024"], [0.1], SEEDS, steps=10000, warm_up=5000),
    "tenth": runs(["maxrl-1024"], [0.3, 3.0], SEEDS, steps=2500, warm_up=500),
}
