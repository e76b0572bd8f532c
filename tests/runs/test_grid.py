"""`python -m maxrl.grid`: names that parse back, what is run, skipped, resumed and listed, signals, the Slurm script."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxrl import report
from maxrl.config import FREE_ON_RESUME, Config, with_overrides
from maxrl.errors import UsageError
from maxrl.recipes import RECIPES
from maxrl.run import grid

TEXT = st.text(st.characters(codec="utf-8", exclude_characters=","), max_size=8)
PLAIN = {
    "estimator": st.sampled_from(["maxrl", "dr_grpo", "a-b/c.py:root", "m-n4-bs2.py:f"]),
    "rollouts": st.integers(1, 4096).map(str),
    "prompts": st.integers(1, 4096).map(str),
    "lr": st.floats(0, 1).map(repr),
    "seed": st.integers(0, 2**31 - 1).map(str),
    "max-response": st.integers(1, 4096).map(str),
    "schedule": st.sampled_from(["constant", "cosine"]),
    "clip": st.sampled_from(["0.2,0.2", "0.1,0.3"]),
    "allow_fractional": st.sampled_from([None, "true", "false"]),
    "init": TEXT,
    "steps": st.integers(0, 9).map(str),
    "epochs": st.just("0"),
    "task.size": st.one_of(TEXT, st.integers().map(str), st.none()),
    "estimator.order": TEXT,
    "reward": st.sampled_from(["a.py:f,b.py:g", "x:y"]),
}


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(st.sampled_from(sorted(PLAIN)), st.data() | st.none(), min_size=1), st.data()
)
def test_a_name_parses_back_to_the_options(keys, data):
    """Whatever is in them: train.py given what a name tells makes the Config that the name was made of, but for what a resumed
    run may change."""
    pairs = [(key, data.draw(PLAIN[key], label=key)) for key in keys]
    usual = Config(estimator_defaults={"maxrl": {"x": 1}})
    cfg = with_overrides(
        usual, [f"--{key}" if value is None else f"--{key}={value}" for key, value in pairs]
    )
    name = grid.name_of("recipe", cfg, [key for key, _ in pairs])
    assert "/" not in name and name.isprintable() and "\0" not in name
    told = grid.options_of(name)
    assert {"estimator", "rollouts", "prompts"} <= set(told)
    if "@" in name:  # a value that is too long has a checksum
        return
    assert told.pop("model") == (Path(cfg.init).name or "recipe")
    back = with_overrides(usual, [f"--{key}={value}" for key, value in told.items()])
    wanted = replace(
        cfg, **{field: getattr(back, field) for field in FREE_ON_RESUME - {"steps", "epochs"}}
    )
    assert repr(back) == repr(wanted)  # NaN is NaN


def test_names_are_what_people_read():
    def names(*words):
        return list(grid.product("gsm8k_smollm2", grid.split_arguments(words)))

    model = "SmolLM2-360M-Instruct"
    options = ("--lr", "1e-5,3e-05", "--seed=1", "--eval-every", "10", "--init", f"a/{model}")
    assert names("--estimator", "maxrl,grpo", *options) == [
        f"{model}-{method}-n128-bs256-lr={lr}"
        for method in ("maxrl", "grpo")
        for lr in ("1e-05", "3e-05")
    ]
    assert names("--init", "a/b,c/b", "--estimator", "rloo") == [
        f"b-rloo-n128-bs256-init={x}%2Fb" for x in "ac"
    ]
    assert names("--rollouts", "2,4", "--steps", "5", "--clip", "0.1,0.2") == [
        f"{model}-maxrl-n{n}-bs256" for n in (2, 4)
    ], "only what is swept"
    assert names("--steps", "5,7")[1].endswith("bs256-steps=7"), (
        "what a resumed run may change is named where it is swept"
    )
    assert list(grid.product("subset_sum_sft", [("seed", "0,0,1")])) == [
        f"subset_sum_sft-supervised-n1-bs32-seed={seed}" for seed in (0, 1)
    ]
    assert [grid.label(recipe) for recipe in ("mine.py:short", "runs/X/recipe.json")] == [
        "short",
        "X-again",
    ]
    told = grid.options_of(names("--init", "runs/a-lr=3,b", "--task.directory", "c-d=4-e,f")[0])
    assert (told["model"], told["init"], told["task.directory"], "lr" in told) == (
        "a-lr=3",
        "runs/a-lr=3",
        "c-d=4-e",
        False,
    )
    with pytest.raises(UsageError, match="--lr quick cannot be read"):
        names("--lr", "1e-5,quick")
    with pytest.raises(UsageError, match="no estimator is called 'grop'"):
        names("--estimator", "maxrl,grop")


def test_names_fit_into_a_file_system():
    """What has one value is not in them; a swept one that is long has its checksum there."""
    long = f"/home/{'x' * 90}/a.jsonl"
    fixed = [("task.train", long), ("task.validation", long), ("reward", f"{long}.py:f"),
             ("temperature", "1"), ("top-p", "1"), ("top-k", "0"), ("seed", "0,1")]  # fmt: skip
    names = list(grid.product("prompts", fixed))
    assert names == ["prompts-maxrl-n16-bs32-seed=0", "prompts-maxrl-n16-bs32-seed=1"]
    swept = []
    for key in ("init", "task.train", "task.validation"):
        swept.append((key, f"{long}/{key}1,{long}/{key}2"))
    names = list(grid.product("prompts", [*swept, ("estimator", f"maxrl,{long}.py:f")]))
    assert len(set(names)) == 16 and max(map(len, names)) < 150
    told = [grid.options_of(name) for name in names]
    assert all(re.fullmatch("@[0-9a-f]{8}", row["task.train"]) for row in told)
    assert told[0]["model"] == "init1" and {row["estimator"] for row in told[:2]} > {"maxrl"}
    many = [(f"task.{letter * 30}", "1,2") for letter in "abcdefgh"]
    with pytest.raises(UsageError, match="cannot be called .*: sweep fewer options, or shorter"):
        grid.product("prompts", [("task", "a.py:T"), *many])


def test_two_runs_of_one_name_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(grid, "escaped", lambda text: text[:3])
    with pytest.raises(UsageError, match=r"a run of --lr=0.02 cannot be called \S+-lr=0.0: "):
        grid.product("subset_sum", [("lr", "0.01,0.02")])


def test_rounds_of_rollouts_in_a_name():
    cfg = RECIPES["subset_sum"]()
    for rollouts, part in ((8, "-n8-"), ((8, 8, 16), "-n8+8+16-")):
        object.__setattr__(cfg, "rollouts", rollouts)
        name = grid.name_of("subset_sum", cfg, [])
        assert part in name and grid.options_of(name)["rollouts"] == part[2:-1]


@pytest.fixture
def sweep(shell, warm, monkeypatch, capsys):
    """sweep("--seed", "0,1") -> (exit code, what the grid said, how often it started train.py), in this process."""
    started, heard = [], []

    def start(words, log):
        started.append(words)
        heard.append(capsys.readouterr().err)
        with log.open("a") as file:
            code, said = shell("train.py", *words)
            file.write(said)
        return code, False

    def run(*words):
        started.clear()
        heard.clear()
        monkeypatch.setattr(grid, "start", start)
        small = ("--init", warm, "--prompts", 4, "--steps", 2)
        code = grid.main(["tiny", *map(str, (*small, *words)), "--out", "sweep"])
        return code, "".join(heard) + capsys.readouterr().err, len(started)

    return run


def test_a_sweep_of_four_runs_with_one_that_fails(sweep):
    options = ("--estimator", "maxrl,grpo", "--rollouts", "2,4")
    Path("sweep").mkdir()
    Path("sweep/warm-grpo-n2-bs4").touch()
    code, said, started = sweep(*options)
    assert code == 1 and started == 4, said
    names = [f"warm-{method}-n{n}-bs4" for method in ("maxrl", "grpo") for n in (2, 4)]
    for i, name in enumerate(names):
        assert re.search(
            rf"^{i} {name}: {'failed with code 2' if i == 2 else 'done'} after \d+ s$", said, re.M
        ), said
    assert "3 of 4 runs in sweep are finished\n" in said
    assert re.search(
        r"^failed: warm-grpo-n2-bs4: train.py: --out \S+ is a file, .* \(sweep/warm-grpo-n2-bs4\.log\)$",
        said,
        re.M,
    ), said

    code, said, started = sweep(*options)
    assert code == 1 and started == 1 and said.count(": was finished\n") == 3, (
        "again: what failed is tried, alone"
    )
    code, said, started = sweep(*options, "--steps", 3)
    assert code == 1 and started == 4, "more steps: the three go on"
    assert all(
        len(file.read_text().splitlines()) == 3 for file in Path("sweep").glob("*/metrics.jsonl")
    )
    code, said, started = sweep(*options, "--task-id", 1)
    assert (code, started) == (0, 0) and "1 warm-maxrl-n4-bs4: was finished\n1 of 1 runs" in said, (
        "longer than is asked"
    )
    code, said, started = sweep(*options, "--task-id", 2)
    assert (code, started) == (1, 1) and "failed: warm-grpo-n2-bs4: " in said
    with pytest.raises(UsageError, match="--task-id 4: the 4 runs of this grid are 0 to 3"):
        sweep(*options, "--task-id", 4)
    assert said.endswith("\nfix it and give the same command again: it tries these again\n")

    Path("sweep/warm-grpo-n2-bs4").unlink()
    code, said, started = sweep(*options)
    assert (code, started) == (0, 1) and "fix it" not in said
    typed = re.search(r"^report: python -m maxrl.report (.+)$", said, re.M)[1]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\n' {typed}"], text=True, capture_output=True, check=True
    ).stdout
    report.main(words.splitlines())
    assert all(name in Path("sweep/report.html").read_text() for name in names)


def test_what_is_finished(sweep, monkeypatch):
    """By its newest checkpoint and its recipe: another recipe of the same name is for train.py to refuse."""
    assert sweep()[::2] == (0, 1)
    run = next(Path("sweep").glob("*/latest")).parent
    init = json.loads((run / "recipe.json").read_text())["config"]["init"]
    _, cfg = grid.product("tiny", [("init", init), ("prompts", "4"), ("steps", "2")])[run.name]
    assert grid.finished(run, cfg) and not grid.finished(run, replace(cfg, steps=3))
    assert not grid.finished(run, replace(cfg, lr=0.5)) and not grid.finished(Path("nowhere"), cfg)
    assert not grid.finished(run, replace(cfg, epochs=1.0)), "it was not told in epochs"
    state = run / "step-000002/state.json"
    text = state.read_text()
    state.write_text(json.dumps(json.loads(text) | {"reached": True}))
    assert grid.finished(run, replace(cfg, steps=3)), "it ended where it was to end"
    state.write_text(text)
    usual = RECIPES["tiny"]
    monkeypatch.setitem(RECIPES, "tiny", lambda: replace(usual(), lr=0.5))
    code, said, started = sweep()
    assert (code, started) == (1, 1) and "was started with lr = 0.0007, not 0.5" in said
    (run / "latest").write_text("step-000009")
    assert not grid.finished(run, cfg)


STUB = """
import os, signal, sys, time
print("here", *sys.argv[1:], flush=True)
def heard(number, frame):
    print("heard", number, flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, heard)
if sys.argv[1] == "wait":
    open("ready", "w").close()
    time.sleep(60)
print("bar 1", end="\\r")
print("the last line", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def test_a_run_is_a_program_of_its_own(tmp_path, monkeypatch):
    """Its exit code, what it says, and a signal, which it gets from the grid."""
    monkeypatch.chdir(tmp_path)
    Path("stub.py").write_text(STUB)
    monkeypatch.setattr(grid, "TRAIN", [sys.executable, "stub.py"])
    log = Path("log")
    assert grid.start(["3", "b c"], log) == (3, False) and grid.last_line(log) == "the last line"
    assert log.read_text().startswith("here 3 b c\n")
    before = signal.getsignal(signal.SIGTERM)

    def send():
        while not Path("ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    assert grid.start(["wait"], log) == (75, True) and log.read_text().endswith(
        f"heard {signal.SIGTERM.value}\n"
    )
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_ends_the_grid_and_not_the_next_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    started = []
    for answer, code in (
        ((75, False), 75),
        ((130, True), 75),
        ((1, False), 1),
        ((0, False), 1),
        ((0, False), 0),
    ):
        started.clear()
        ended = iter([False, True] * 2)  # a run is done if it says so, whatever its exit code
        monkeypatch.setattr(grid, "finished", lambda run, cfg, code=code: code == 0 and next(ended))
        monkeypatch.setattr(
            grid,
            "start",
            lambda words, log, answer=answer: (started.append(words), log.touch(), answer)[-1],
        )
        assert grid.main(["subset_sum", "--seed", "0,1"]) == code
        assert len(started) == (1 if code == 75 else 2)
        assert started[0] == [
            "subset_sum",
            "--seed=0",
            "--out",
            "runs/subset_sum-grid/subset_sum_sft-maxrl-n32-bs16-seed=0",
            "--resume",
            "auto",
        ]
    assert "stopped by a signal; the same command resumes it" in capsys.readouterr().err


@pytest.mark.parametrize("code, queued", [(0, False), (1, False), (75, True)])
def test_the_slurm_script(tmp_path, monkeypatch, capsys, code, queued):
    """What bash makes of it, with programs of Slurm's that only say what they were told."""
    words = ["subset_sum", "--seed", "0,1,2", "--init", "a b", "--out", "sweep"]
    assert grid.main([*words, "--slurm"]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --array=0-2 " in script and not (tmp_path / "sweep").exists()
    for name, body in {
        "srun": f'printf "%s|" "$@" >> said; exit {code}',
        "scontrol": 'echo "scontrol $@" >> said',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_ARRAY_JOB_ID": "7",
    }
    run = subprocess.run(
        ["bash", "-u"], input=script, text=True, cwd=tmp_path, env=environment, capture_output=True
    )
    assert run.returncode == code and not run.stderr
    told = "|".join(["python", "-m", "maxrl.grid", *words, "--task-id", "2", ""])
    assert (tmp_path / "said").read_text() == told + ("scontrol requeue 7_2\n" if queued else "")


def test_mistakes(shell, capsys):
    assert grid.main([]) == 0 and "--task-id NUMBER" in capsys.readouterr().out
    for words, sentence in {
        ("nope", "--seed", "0"): "no recipe is called 'nope'",
        ("tiny", "--resume", "yes"): "--resume is not for a grid",
        ("tiny", "--sede", "0,1"): "--sede is not an option; did you mean --seed",
        ("tiny", "--task-id", "x"): "--task-id x cannot be read",
    }.items():
        with pytest.raises(UsageError, match=re.escape(sentence)):
            grid.main(list(words))
