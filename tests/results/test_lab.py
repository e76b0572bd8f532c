"""What studies share (results/lab): a toy study from its runs to its table, what is kept, and the
numbers over seeds."""

import itertools
import json
import os
import runpy
import shlex
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from maxrl.analysis.metrics import half_width, t_quantile
from maxrl.learning.policy import SequencePolicy
from maxrl.run import grid
from maxrl.run.directory import STOPPED
from maxrl.run.recipes.laptop import maze9_laptop_sft
from maxrl.system.errors import UsageError
from maxrl.system.files import read_json
from results.lab import __main__ as lab
from results.lab import data, guessing, intervals, keep
from results.lab.runs import evaluation, in_order, product, recorded, with_bases
from results.maze13_end import study as maze13_end
from tests import ROOT
from tests.helpers.runs import at_call
from tests.helpers.tables import each


@pytest.fixture
def toy(mazes, shell, monkeypatch, handlers):
    """A study of two runs on 7x7 mazes, made in this process."""
    results = Path.cwd() / "results"
    (results / "toy").mkdir(parents=True)
    for module in (keep, data, lab):
        monkeypatch.setattr(module, "RESULTS", results)
    task = f"--task.size 7 --task.directory {mazes} --prompts 2 --eval-every 0"
    warm_up = f"train.py maze9_laptop_sft {task} --steps 9 --stop-at-pass 0 --seed 0"
    rl = f"train.py maze9_laptop {task} --steps 2 --rollouts 4 --init runs/toy/seed0/base"
    models = {name: f"toy/seed0/{name}" for name in ("base", "maxrl")}
    study = SimpleNamespace(
        RUNS={
            "all": product("seed0/base", warm_up)
            | product("seed0/{arm}", f"{rl} --estimator {{arm}}", arm=["maxrl", "grpo"])
        },
        TESTS={
            "test-seed0.json": evaluation("--prompts 4 --samples 2", models),
            "other.json": evaluation("--prompts 1 --samples 1", models),
        },
        tables=lambda: print(len(data.runs("toy")["maxrl"][0])),
    )

    def start(words, *_, **options):
        code, _ = shell(*words[1:])
        return SimpleNamespace(poll=lambda: code, returncode=code)

    monkeypatch.setattr(grid, "start", start)
    monkeypatch.setattr(lab, "subprocess", SimpleNamespace(run=start))
    monkeypatch.setattr(lab, "STUDIES", ["toy"])
    monkeypatch.setattr(lab, "load", lambda name: study)
    return lambda *words: lab.main(["toy", *words])


def steps_of(run: str) -> list[int]:
    file = Path("runs/toy", run, "metrics.jsonl")
    return [row["step"] for row, _ in keep.json_lines(file)] if file.exists() else []


def test_a_study_from_its_runs_to_its_table(toy, monkeypatch):
    """What a signal has interrupted goes on; a chosen run has its base made; what has not ended is
    not kept, and the test and the table are of what was asked."""
    with monkeypatch.context() as patch:
        interrupt = at_call(3, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        patch.setattr(SequencePolicy, "backward", interrupt)
        assert toy("runs", "--only", "maxrl") == STOPPED
    assert steps_of("seed0/base") == [0, 1, 2]
    toy("keep")
    assert not Path("results/toy/runs.json").exists()

    assert toy("runs", "--only", "maxrl") == 0
    assert steps_of("seed0/base") == [*range(9)]
    assert steps_of("seed0/maxrl") == [0, 1]
    assert not Path("runs/toy/seed0/grpo").exists()
    assert toy("test", "--only", "test") == 0
    toy("keep")
    assert list(data.read_json("toy/runs.json")["runs"]) == ["seed0/base", "seed0/maxrl"]
    test = data.tested("toy/test-seed0.json")
    assert [row["name"] for row in test["checkpoints"]] == ["base", "maxrl"]
    assert list(data.kept("toy", "tests")) == ["test-seed0.json"]
    (base,) = data.by_seed("toy", "test", [1])["base"].items()
    assert base[0] == 0 and base[1].shape == (1,)
    # What was kept gives the study's own words back.
    study = lab.load("toy")
    for found, named in (
        (recorded("toy"), study.RUNS["all"]),
        (recorded("toy", "tests"), study.TESTS),
    ):
        assert found and all(words[1:] == named[name][1:] for name, words in found.items())
    toy("tables")
    assert Path("results/toy/tables.md").read_text().endswith("\n\n1\n")


def test_a_dry_run_says_what_would_be_done(toy, monkeypatch, capsys):
    """The words of the grid's children, a core each, and of the chosen tests alone."""
    made = []
    monkeypatch.setattr(grid, "run_all", lambda *given: made.append(given) and 0)
    toy("runs", "--only", "grpo")
    assert [[*runs] for _, runs, *_ in made] == [["seed0/base"], ["seed0/grpo"]]
    for _, _, folder, slots in made:
        assert folder == Path("runs/toy")
        assert [slot["OMP_NUM_THREADS"] for slot in slots] == ["1"]
    capsys.readouterr()
    toy("runs", "--only", "grpo", "--dry-run")
    said = capsys.readouterr().out
    assert said.count("train.py") == 2
    assert all(shlex.join(words) in said for _, runs, *_ in made for words in runs.values())
    toy("test", "--only", "other", "--dry-run")
    assert capsys.readouterr().out.count("eval.py") == 1


@pytest.mark.parametrize("what", ["runs", "test", "figures"])
def test_names_that_a_study_does_not_have_are_refused(toy, what):
    """With those that it has, where nothing would be done."""
    with pytest.raises(UsageError, match=f"toy has no {what} with 'nonsense'"):
        toy(what, "--only", "nonsense", "--numbers")


def test_runs_start_after_those_they_start_from():
    runs = product("{n}/rl", "train.py maze9_laptop --init runs/x/{n}/base", n=[0, 1])
    runs |= product("{n}/base", "train.py maze9_laptop_sft --seed {n}", n=[0, 1])
    chosen = with_bases({"1/rl": runs["1/rl"]}, runs, "runs/x")
    assert chosen == {name: runs[name] for name in ("1/rl", "1/base")}
    runs |= product("{n}/more", "train.py maze9_laptop --init runs/x/{n}/rl", n=[1])
    assert [*map(list, in_order(runs, "runs/x"))] == [
        ["0/base", "1/base"],
        ["0/rl", "1/rl"],
        ["1/more"],
    ]


def test_what_is_kept_of_a_run(warm):
    """Means of five steps; columns give the rows back."""
    rows = [row for row, _ in keep.json_lines(warm / "metrics.jsonl")]
    kept = keep.kept_run(warm)
    assert kept["metrics"]["step"] == [*range(4, len(rows), 5)]
    first = np.mean([row["loss"] for row in rows[:5]])
    assert kept["metrics"]["loss"][0] == pytest.approx(first, rel=1e-5)
    recipe = read_json(warm / "recipe.json")
    about = ("command", "commit", "machine", "torch", "python")
    assert all(kept[name] == recipe[name] for name in about)
    assert recipe["machine"] and bool(recipe["commit"]) == (ROOT / ".git").exists()


# What a run has recorded, whether it has other losses, and what is kept. An earlier version
# recorded nothing; other losses without a word are another run in its place.
LABELS = """
{} | false | "first"
{} | true | null
{"commit": "own"} | false | "own"
{"commit": "own"} | true | "own"
{"commit": "first"} | false | "first"
"""


@each("row", LABELS)
def test_a_later_keep_does_not_relabel_a_run(row, warm, toy):
    recorded, changed, expected = map(json.loads, row)
    run = Path("runs/toy/seed0/base")
    shutil.copytree(warm, run)
    recipe = read_json(run / "recipe.json")
    recipe = {key: recipe[key] for key in recipe if key not in ("commit", "machine")}
    (run / "recipe.json").write_text(json.dumps(recipe | recorded))
    entry = keep.kept_run(run) | {"commit": "first"}
    entry["metrics"]["loss"][0] += changed
    Path("results/toy/runs.json").write_text(json.dumps({"runs": {"seed0/base": entry}}))
    toy("keep")
    assert data.read_json("toy/runs.json")["runs"]["seed0/base"].get("commit") == expected


@pytest.mark.parametrize("lost", [0, 1, 10**6])
def test_only_what_has_ended_is_kept(warm, lost, toy):
    """A run that lacks steps, or has none, does not take the place of the one kept before."""
    run = Path("runs/toy/seed0/base")
    shutil.copytree(warm, run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[: max(len(lines) - lost, 0)]))
    before = {"command": "x", "runs": {"seed0/base": {"command": "before"}}}
    Path("results/toy/runs.json").write_text(json.dumps(before))
    toy("keep")
    after = data.read_json("toy/runs.json")["runs"]["seed0/base"]
    assert (after["command"] == "before") == (lost > 0)


def rows_evaluated(seconds: float, passed: list[float]) -> list[dict]:
    """A run that is kept every five steps and evaluated once in ten."""
    rows = []
    for i in range(2 * len(passed)):
        found = {"eval/pass@1": passed[i // 2]} if i % 2 else {}
        rows.append({"step": 5 * i + 4, "seconds": seconds, "rollouts": 8} | found)
    return rows


def test_differences_where_the_shorter_run_ends():
    """By hand: 30 seconds are 30 steps of the one and 15 of the other, between two evaluations."""
    quick, slow = rows_evaluated(1, [0.1, 0.2, 0.3]), rows_evaluated(2, [0.0, 0.4, 0.8])
    assert [*data.clock(quick, 10)] == [10, 20, 30] and [*data.clock(slow, 10)] == [20, 40, 60]
    assert [*data.clock(slow, 10, "rollouts")] == [80, 160, 240]
    one, other = ([(data.clock(rows, 10), rows)] for rows in (quick, slow))
    assert data.at_clocks(one, other, [1]).round(9).tolist() == [[0.1]]
    assert data.at_clocks(other, one, [1]).round(9).tolist() == [[-0.1]]
    late = rows_evaluated(4, [0.5])
    with pytest.raises(ValueError, match="before the first evaluation"):
        data.at_clocks(one, [(data.clock(late, 10), late)], [1])


def test_pairs_are_made_by_seed():
    found = {"own": {1: [0.5], 2: [0.7], 4: [1.0]}, "other": {2: [0.1], 3: [0.0], 1: [0.2]}}
    pairs = data.paired(found, ("own", "other"))
    assert pairs == {"own": {1: [0.5], 2: [0.7]}, "other": {1: [0.2], 2: [0.1]}}
    assert data.minus(found, "own", "other").round(9).tolist() == [[0.3, 0.6]]


def test_every_best_checkpoint_was_tested():
    """Of every 300 steps by pass@1 + pass@8 on validation, where it is not the last."""
    tests = data.kept("maze13_end", "tests")
    every = maze13_end.SAVED // maze13_end.EVERY
    for name, seeds in maze13_end.at_best().items():
        for seed, rows in seeds.items():
            scores = np.sum([data.evaluations(rows, k) for k in maze13_end.KS], axis=0)
            saved = scores[every - 1 :: every]
            test = tests.get(f"best-{name}-seed{seed}.json", {"command": ""})
            step = f"/step-{maze13_end.SAVED * (saved.argmax() + 1):06}"
            assert (step in test["command"]) == (saved.max() > scores[-1]), (name, seed)


def test_the_rates_are_those_of_the_search():
    """A rate is the best of those that were run, with both neighbours, or that of the warm-up for
    demonstrations; the penalty is the better one."""
    scores: dict[str, dict[str, float]] = {}
    for arm, seeds in data.runs("maze13_end").items():
        if maze13_end.SEARCHED in seeds and "-lr" in arm:
            name, rate = arm.split("-lr")
            last = [data.evaluations(seeds[maze13_end.SEARCHED], k)[-1] for k in maze13_end.KS]
            scores.setdefault(name, {})[rate] = sum(last)
    for name, chosen in maze13_end.BEST.items():
        if name in scores:
            assert max(scores[name], key=scores[name].get) == chosen
            place = maze13_end.RATES.index(chosen)
            assert set(maze13_end.RATES[max(place - 1, 0) : place + 2]) <= set(scores[name])
        elif name == "supervised":
            assert float(chosen) == maze9_laptop_sft().lr
        elif name == "grpo-low":
            assert float(chosen) == float(maze13_end.BEST["grpo"]) / 2
        else:
            assert chosen == maze13_end.BEST[maze13_end.UNSEARCHED[name]]
    penalised = {name: max(some.values()) for name, some in scores.items() if "-k" in name}
    assert max(penalised, key=penalised.get) == maze13_end.PENALISED


def test_the_interval():
    """A hand-computed case, and the quantiles of a printed table."""
    values = np.array([0.0, 2.0])  # mean 1, standard error 1
    assert intervals.interval(values) == "1.000 ± 12.706"
    assert intervals.interval(values[:1]) == "0.000"
    tabled = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 8: 2.365, 10: 2.262, 31: 2.042}
    assert {count: round(t_quantile(count), 3) for count in tabled} == tabled


def test_p_values_against_closed_forms():
    """Student's t of one and of two degrees of freedom; an interval that ends at 0 has p .05."""
    for t in (0.1, 1.0, 7.0, 400.0):
        # Mean t, standard error 1.
        two, three = np.array([t - 1, t + 1]), t + 3**0.5 * np.array([-1, 0, 1])
        assert intervals.p_value(two) == pytest.approx(1 - 2 / np.pi * np.arctan(t), rel=1e-5)
        expected = 2 / (2 + t * t + t * (2 + t * t) ** 0.5)
        assert intervals.p_value(-three) == pytest.approx(expected, rel=1e-5)
    for count in (2, 6, 20):
        values = np.arange(count) - (count - 1) / 2
        moved = values + half_width(values)
        assert intervals.p_value(moved) == pytest.approx(0.05, abs=1e-5)


def test_holm_is_the_step_down_procedure():
    """At every level those are rejected that are when the smallest are compared in turn."""
    ps = [0.02, 0.001, 0.3, 0.012, 0.011, 0.04]
    corrected = intervals.holm(ps)
    for level in (0.005, 0.01, 0.05, 0.06, 0.1, 0.2, 0.5):
        rejected = set()
        for left, p in zip(range(len(ps), 0, -1), sorted(ps)):
            if p > level / left:
                break
            rejected.add(p)
        assert {p for p, q in zip(ps, corrected) if q <= level} == rejected
    assert intervals.holm([0.6, 0.7]).max() == 1


def test_guesses_against_the_tasks_own_verdict():
    """Of ten mazes: every guess that there is, judged by the task."""
    mazes = guessing.maze_set(9, 3, 10)
    down, right = "DOWN DOWN ", "RIGHT RIGHT "
    walks = {"".join(moves) for moves in itertools.permutations([down] * 3 + [right] * 3)}
    assert len(walks) == 20
    for example in (mazes[i] for i in range(10)):
        solved = sum(mazes.verify(f"{walk}DONE", example) for walk in walks)
        assert mazes.guess(example) == solved / 20


def test_the_kept_guesses_are_those_of_the_sets(in_a_directory_of_its_own):
    """The program makes the file again, beside its copy here."""
    shutil.copy(guessing.__file__, "guessing.py")
    runpy.run_path("guessing.py", run_name="__main__")
    assert read_json("guessing.json") == data.read_json("lab/guessing.json")
    # 1 - (1 - 1/100)^8 of a set whose guesses are all 1/100.
    assert guessing.guessing("word problems up to 100", [8])[0] == pytest.approx(1 - 0.99**8)
