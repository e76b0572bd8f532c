"""SmolLM2-135M on generated word problems: a real language model that learns in 40 steps; and the
paper's Figure 4 with it, 30 epochs of 32 problems.

A test is SETSEED.json, and MODEL-STEPS in it a shorter or a longer run, or an earlier checkpoint.
"""

import numpy as np

from maxrl.analysis.metrics import mean_and_se
from maxrl.analysis.table import coverage, over_seeds
from results.lab.data import from_bases, minus, runs, tested
from results.lab.figures import curve, few_problems, panel, seeds_said
from results.lab.intervals import side_by_side, with_error
from results.lab.runs import product, recorded
from results.lab.tables import label_of, leads, pass_columns, summary, table

# Four times the steps of the harder set.
LONG = (
    "train.py gsm8k_smollm2_135m --task.directory word_problems_100 --max-response 64 "
    "--eval-every 20 --eval-prompts 64 --eval-samples 16 --eval-temperature 1 --eval-top-p 1 "
    "--eval-k 1,8 --prompts 16 --lr 2e-5 --seed {seed} --init runs/smollm2/seed{seed}/base "
    "--estimator {arm} --rollouts 16 --steps 160 --save-every 20 --keep 0"
)
RUNS = {
    "all": recorded("smollm2"),
    "long": product("long/seed{seed}/{arm}", LONG, seed=[2], arm=["maxrl", "grpo"]),
}
KEPT_STEPS = 1
# {set: its title, folder of runs, seeds, samples a test problem}
SETS = {
    "seed": ("first set", "", (0, 1, 2), 64),
    "hard": ("harder set", "hard/", (2, 3), 64),
    "few": ("32 problems", "few/", (4, 5), 32),
}
# Epochs between evaluations: in two steps of 16 prompts each of 32 problems is seen once.
EVERY = 10
# The last even step within the seconds of the 40 of rounds, and of rounds within those of the 40 of
# GRPO, by the mean of their first 40. At a constant rate these 40 are the same.
SHORTER = ("grpo-12", "maxrl-12", "rloo-14", "grpo-22", "grpo-18")
LONGER = ("rounds-102", "rounds-70", "rounds-78")
# GRPO's checkpoint with the largest pass@1 + pass@8 on validation; MaxRL's is the last.
BEST = {4: "grpo-40", 5: "grpo-20"}
# What is compared: a model minus another.
PAIRS = [("rounds", "grpo"), ("maxrl", "grpo"), ("rloo", "grpo"), ("maxrl", "rounds")]
PAIRS += [(arm, "base") for arm in ("rounds", "maxrl", "grpo", "rloo")]
PAIRS += [("rounds", model) for model in SHORTER]
PAIRS += [(model, other) for model in LONGER for other in ("grpo", "rounds")]
PAIRS += [("maxrl-12", "grpo-12"), *(("maxrl", model) for model in BEST.values())]


def named(model: str) -> str:
    return f"{label_of(model)} steps" if "-" in model else label_of(model)


def ks_of(where: str) -> list[int]:
    return [k for k in (1, 8, 16, 64) if k <= SETS[where][3]]


def pass_and_votes(where: str) -> list[str]:
    return [*pass_columns(ks_of(where)), f"majority of {SETS[where][3]}"]


def right(where: str) -> dict[tuple[int, str], np.ndarray]:
    """{(seed, model): pass@k and the verdict on the majority, (ks + 1, problems)} of a set."""
    found = {}
    for seed in SETS[where][2]:
        test = tested(f"smollm2/{where}{seed}.json")
        votes = over_seeds(test, lambda row: row["majority"])
        for model, values in coverage(test, ks_of(where)).items():
            found[seed, model] = np.vstack([values[0].T, votes[model]])
    return found


def run_by_run(where: str) -> dict[str, dict[int, np.ndarray]]:
    """{model: {seed: pass@k, (ks,)}} of a set."""
    found: dict[str, dict] = {}
    for (seed, model), values in right(where).items():
        found.setdefault(model, {})[seed] = values.mean(1)[:-1]
    return found


def side_by_side_rows(where: str) -> list[list]:
    """A row a model, its seeds side by side."""
    rows = []
    for model, seeds in run_by_run(where).items():
        cells = map(side_by_side, zip(*seeds.values()))
        rows.append([f"{SETS[where][0]}, {named(model)}", ", ".join(map(str, seeds)), *cells])
    return rows


def over_problems(where: str):
    """A row a model and a row a pair, with errors over problems."""
    found, levels, gaps = right(where), {}, {}
    for (seed, model), own in found.items():
        name = f"{SETS[where][0]}, seed {seed}, {named(model)}"
        levels[name] = own
        for other in [other for one, other in PAIRS if one == model and (seed, other) in found]:
            gaps[f"{name} minus {named(other)}"] = own - found[seed, other]
    summary("model, standard error over problems", pass_and_votes(where), levels, cell=with_error)
    if where == "few":
        # The problems are the same for both seeds.
        for title, best in (("after 30 epochs", {}), ("each at its best", BEST)):
            both = [found[seed, "maxrl"] - found[seed, best.get(seed, "grpo")] for seed in BEST]
            gaps[f"both seeds, MaxRL minus GRPO, {title}"] = np.mean(both, 0)
    summary("paired over problems", pass_and_votes(where), gaps, "+", with_error)


def over_runs():
    """Rounds and GRPO over the seeds of the first set, Algorithm 1 minus GRPO over both sets."""
    columns, gaps = pass_columns(ks_of("seed")), {}
    first, harder = run_by_run("seed"), run_by_run("hard")
    for own, other in (("rounds", "grpo"), ("rounds", "base"), ("grpo", "base")):
        gaps[f"{label_of(own)} minus {label_of(other)}"] = minus(first, own, other)
    leads("first set, 95 % over seeds", columns, gaps)
    both = np.hstack([minus(found, "maxrl", "grpo") for found in (first, harder)])
    leads("both sets, after 40 steps, 95 % over runs", columns, {"MaxRL minus GRPO": both})


def costs():
    """What each run took."""
    rows = []
    for title, folder, _, _ in SETS.values():
        for name, seeds in sorted(runs("smollm2", folder).items()):
            for seed, metrics in seeds.items() if name != "base" else ():
                sums = [
                    f"{sum(row[key] for row in metrics):,.0f}" for key in ("rollouts", "seconds")
                ]
                rows.append([f"{title}, seed {seed}, {named(name)}", *sums])
    table(["steps of RL", "rollouts", "seconds"], rows)


def tables():
    heads = ["model", "seeds", *pass_and_votes("seed")[:-1]]
    table(heads, side_by_side_rows("seed") + side_by_side_rows("hard"))
    for where in SETS:
        over_problems(where)
    over_runs()
    costs()


def differences_from_grpo() -> dict:
    """Each form minus GRPO on every run of both sets, after equal steps and in GRPO's time."""
    places = []
    for where in ("seed", "hard"):
        for seed in SETS[where][2]:
            own = {model: values for (of, model), values in right(where).items() if of == seed}
            longer = [own[model] for model in LONGER if model in own]
            own |= {"maxrl_rare": longer[0]} if longer else {}
            places.append((f"{SETS[where][0].split()[0]}\nseed {seed}", own))
    # What a form is called, and the look of its points.
    forms = {
        "maxrl": "MaxRL, equal steps",
        "rounds": "in rounds, equal steps",
        "maxrl_rare": "in rounds, GRPO's time",
    }
    panels = []
    for row, k in ((0, 1), (1, 8)):
        lines = []
        for beside, (form, said) in enumerate(forms.items()):
            points = [
                (place + 0.15 * (beside - 1), *mean_and_se(own[form][row] - own["grpo"][row]))
                for place, (_, own) in enumerate(places)
                if form in own
            ]
            x, y, errors = np.transpose(points)
            lines.append(curve(said, x, y, band=errors, points=True, like=form))
        axes = {"xticks": [*range(len(places))], "xticklabels": [at for at, _ in places]}
        ylabel = f"pass@{k} minus GRPO's, test"
        panels.append(panel("ours (reduced scale)", "", ylabel, lines, zero=True, **axes))
    return {
        "title": "After equal steps GRPO is ahead at one try, in its time rounds are not behind",
        "caption": "SmolLM2-135M, results up to 20, on the harder set up to "
        "100. After ten supervised steps 40 of 16 prompts x 16 rollouts, in rounds 4, 4 and 8 "
        "until one is right, or 70 to 102 steps of these in GRPO's time. 96 test problems x 64 "
        "samples; bars: one standard error over problems",
        "panels": panels,
    }


def few_epochs() -> dict:
    """Validation over epochs of few problems, the paper's and ours."""
    found = runs("smollm2", "few/")
    trained = {method: found[method] for method in ("maxrl", "grpo")}
    return few_problems(
        "Over 30 epochs of 32 problems little tells MaxRL and GRPO apart",
        "Ours: after ten supervised steps 60 of 16 prompts x 16 rollouts, 64 validation problems x "
        f"16 samples. Solid: ours, {seeds_said(2)}; dashed: the paper's, on 7,473 problems",
        ("paper: GSM8K, SmolLM2-360M", "ours: 32 word problems, SmolLM2-135M (reduced scale)"),
        {k: from_bases("smollm2", "few-bases", trained, k) for k in (1, 8)},
        EVERY,
        "word problems up to 100",
    )


FIGURES = {"tested": differences_from_grpo, "few_epochs": few_epochs}
