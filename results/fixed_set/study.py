"""Many epochs over 128 mazes.

Validation is 128 mazes x 64 samples every five epochs; training pass@1 is the mean reward of the
five epochs before, on the fixed mazes themselves.
"""

from results.lab.data import all_seeds, from_bases, paired, runs
from results.lab.figures import few_problems, seeds_said
from results.lab.intervals import side_by_side
from results.lab.tables import METHODS, differences, label_of, leads, pass_columns, summary, table

EVERY = 5  # epochs between evaluations
TESTED = (1, 8, 64, 256)


def validation(k: int) -> dict:
    """{method: pass@k (seeds, evaluations)}, the first that of the bases."""
    return from_bases("fixed_set", "bases", paired(runs("fixed_set"), METHODS), k)


def tables():
    """When each run was best at one try, and what it lost since; then the test."""
    rows = []
    for method, curves in validation(1).items():
        for seed, ones in enumerate(curves):
            cells = [f"{ones.max():.3f}", EVERY * ones.argmax(), f"{ones[-1]:.3f}"]
            rows.append([f"seed {seed} {label_of(method)}", *cells])
    table(["run", "best pass@1, validation", "epoch", "last"], rows)
    passed = all_seeds("fixed_set", "test", TESTED)
    columns = pass_columns(TESTED)
    summary("mean over seeds, 95 %", columns, passed)
    pairs = [("maxrl", other) for other in ("base", "rloo", "grpo")]
    leads("95 % over seeds", columns, differences(passed, pairs))
    summary("seed by seed", columns, passed, cell=side_by_side)


def figure4() -> dict:
    """Many epochs over few problems, from the bases on."""
    curves = {k: validation(k) for k in (1, 8)}
    return few_problems(
        "Within eight tries MaxRL gains over 60 epochs, GRPO and RLOO lose",
        "Ours: strong base, .3M parameters, 128 validation mazes x 64 samples. Solid: ours, "
        f"{seeds_said(len(curves[1]['maxrl']))}; dashed: the paper's",
        ("paper: GSM8K, SmolLM2-360M", "ours: 128 mazes of 9x9 (reduced scale)"),
        curves,
        EVERY,
        "9x9 mazes",
    )


FIGURES = {"figure4": figure4}
