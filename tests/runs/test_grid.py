"""`python -m maxrl grid`: names, what is run, resumed and listed, and signals."""

import itertools
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from maxrl.analysis.plots import read_runs
from maxrl.run import grid
from maxrl.system.arguments import runs_named
from maxrl.system.errors import UsageError
from maxrl.system.files import read_json
from tests.helpers.runs import passed
from tests.helpers.tables import each

# A grid is a process of its own, and does not give the handlers of signals back.
pytestmark = pytest.mark.usefixtures("handlers")


@pytest.fixture
def planned(monkeypatch, in_a_directory_of_its_own):
    """planned("maze9_laptop", "--seed", "0,1") -> {name: train.py's words}, and nothing is run."""
    found = {}

    def run_all(recipe, runs, folder, slots):
        found.update(runs)
        return 0

    def plan(*words):
        found.clear()
        monkeypatch.setattr(grid, "run_all", run_all)
        grid.main(list(words))
        return dict(found)

    return plan


def test_names_tell_what_is_swept(planned):
    """Fixed options are passed on and stay out of the name."""
    options = ("--lr", "1e-5,3e-05", "--seed=1", "--eval-every", "10", "--task.directory=x")
    runs = planned("gsm8k_smollm2", "--estimator", "maxrl,grpo", *options)
    assert list(runs) == [
        "estimator=maxrl-lr=1e-05",
        "estimator=maxrl-lr=3e-05",
        "estimator=grpo-lr=1e-05",
        "estimator=grpo-lr=3e-05",
    ]
    words = "--estimator=maxrl --lr=1e-05 --seed=1 --eval-every=10 --task.directory=x"
    assert runs["estimator=maxrl-lr=1e-05"] == words.split()
    names = list(planned("maze17", "--init", "a/b,c/b", "--passes=2", "--clip", "0.1,0.2"))
    assert names == ["init=a_b", "init=c_b"]
    assert list(planned("maze9_laptop_sft", "--seed", "0,0,1")) == ["seed=0", "seed=1"]


def test_a_run_has_the_options_that_have_an_effect_in_it(planned):
    """As a decay where the schedule has none; an option without an effect in any run is refused."""
    words = ("maze9_laptop", "--schedule", "constant,cosine", "--decay-ratio", ".3")
    assert planned(*words) == {
        "schedule=constant": ["--schedule=constant"],
        "schedule=cosine": ["--schedule=cosine", "--decay-ratio=0.3"],
    }
    names = list(planned(*words[:-1], ".3,.5"))
    assert names == [
        "schedule=constant",
        "schedule=cosine-decay_ratio=0.3",
        "schedule=cosine-decay_ratio=0.5",
    ]
    with pytest.raises(UsageError, match="--decay-ratio means nothing without"):
        planned("maze9_laptop", "--seed", "0,1", "--schedule", "constant", "--decay-ratio", ".3")


@pytest.fixture
def sweep(shell, warm, monkeypatch, capsys):
    """sweep("--seed", "0,1") -> (exit code, what the grid said), with train.py in this process."""

    def start(words, log, variables):
        said.append(capsys.readouterr().err)
        code, text = shell("train.py", *words[len(grid.TRAIN) :])
        log.write_text(text)
        return SimpleNamespace(poll=lambda: code)

    def run(*words):
        said.clear()
        monkeypatch.setattr(grid, "start", start)
        small = ("--init", warm, "--prompts", 4, "--steps", 2)
        code = grid.main(["tiny", *map(str, (*small, *words)), "--out", "sweep"])
        return code, "".join(said) + capsys.readouterr().err

    said = []
    return run


def test_the_commands_at_its_end(sweep, shell):
    """They take the grid's folder: a row for each estimator, whose runs are its seeds."""
    grid_options = ("--estimator", "maxrl,grpo", "--seed", "0,1", "--rollouts", 2)
    code, said = sweep(*grid_options)
    assert code == 0
    typed = dict(re.findall(r"^  (\w+) +python -m maxrl \w+ (.*)$", said, re.M))
    assert typed.keys() == {"report", "compare"}
    passed(shell("maxrl/analysis/report.py", *typed["report"].split()))
    assert "maxrl" in Path("sweep/report.html").read_text()
    asked = ("--samples", 2, "--k", 1, "--prompts", 3, "--json", "out.json")
    passed(shell("eval.py", *typed["compare"].split(), *asked))
    rows = [
        (row["name"], Path(row["path"]).parent.name)
        for row in read_json(Path("out.json"))["checkpoints"]
    ]
    assert [name for name, _ in rows] == ["grpo", "grpo", "maxrl", "maxrl"]
    curves = read_runs(["sweep"])
    assert {name: len(seeds) for name, seeds in curves.items()} == {"grpo": 2, "maxrl": 2}


# Folders of a grid, and the names of their runs.
GRIDS = """
seed=0 seed=1 | g g
estimator=maxrl-seed=0 estimator=grpo-seed=0 | grpo maxrl
estimator=maxrl-lr=1e-4-seed=0 estimator=maxrl-lr=2e-05-seed=0 | maxrl-lr=1e-4 maxrl-lr=2e-05
lr=1e-4 lr=2e-4 | lr=1e-4 lr=2e-4
task.size=7-seed=1 | task.size=7
run | run
seed=0-estimator.T=0.5 seed=0-estimator.T=1.0 | estimator.T=0.5 estimator.T=1.0
"""


@each("folders, names", GRIDS)
def test_the_runs_of_a_folder(folders, names, in_a_directory_of_its_own):
    for folder in folders.split():
        Path("g", folder).mkdir(parents=True)
        Path("g", folder, "recipe.json").touch()
    assert [name for name, _ in runs_named(["g"])] == names.split()
    own = [f"own-{name}" if name != "g" else "own" for name in names.split()]
    assert [name for name, _ in runs_named(["own=g"])] == own
    # Of two grids the folder is part of the name.
    Path("h/lr=1").mkdir(parents=True)
    Path("h/lr=1/recipe.json").touch()
    both = [f"g-{name}" if name != "g" else "g" for name in names.split()]
    assert [name for name, _ in runs_named(["g", "h"])] == [*both, "h-lr=1"]
    # A run with runs below it is itself.
    Path("g/recipe.json").touch()
    assert runs_named(["g"]) == [("g", "g")]


def test_a_sweep_with_a_run_that_fails(sweep):
    """The others go on; the same command retries it, and finished runs stay. The name has only
    what is swept: a fixed option that changed must not look finished."""
    Path("sweep").mkdir()
    bad = Path("sweep/rollouts=2")
    bad.touch()
    code, said = sweep("--rollouts", "2,4,8")
    assert code == 1
    assert "2 of 3 runs are done\n" in said
    assert "rollouts=2: failed with code 2" in said
    for n in (4, 8):
        assert f"rollouts={n}: done\n" in said
    assert "File exists" in Path("sweep/rollouts=2.log").read_text()
    metrics = {file: file.read_text() for file in Path("sweep").glob("*/metrics.jsonl")}
    assert len(metrics) == 2

    bad.unlink()
    code, said = sweep("--rollouts", "2,4,8")
    assert code == 0
    assert "3 of 3 runs are done\n" in said
    assert "failed" not in said
    assert all(file.read_text() == text for file, text in metrics.items())
    assert sweep("--rollouts", "2,4", "--lr", 0.5)[0] == 1
    assert "was started with lr = 0.0007, not 0.5" in Path("sweep/rollouts=4.log").read_text()


# A train.py that waits for a signal if its seed begins with 75, and otherwise tells when it ran and
# on which GPU. A seed below 9 is its exit code.
STUB = """
import os, signal, sys, time
seed = sys.argv[2].partition("=")[2]
gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
signal.signal(signal.SIGTERM, lambda number, frame: (print("heard", flush=True), sys.exit(75)))
started = time.monotonic()
open("ready-" + seed, "w").close()
time.sleep(60 if seed.startswith("75") else 0.3)
print(f"{started} {time.monotonic()} {gpu}")
sys.exit(int(seed) if int(seed) < 9 else 0)
"""


@pytest.fixture
def stub(tmp_path, monkeypatch, capsys):
    """stub("1,2", "--parallel", "2") -> (exit code, what the grid said)."""
    monkeypatch.chdir(tmp_path)
    Path("stub.py").write_text(STUB)
    monkeypatch.setattr(grid, "TRAIN", [sys.executable, "stub.py"])

    def run(seeds, *words):
        code = 0
        try:
            grid.script(["maze9_laptop", "--seed", seeds, "--out", "sweep", *words])
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err

    return run


def logs():
    """{seed: the words of its log}."""
    found = Path("sweep").glob("*.log")
    return {file.stem.partition("seed=")[2]: file.read_text().split() for file in found}


def overlaps(told) -> bool:
    """Whether two of these runs were there at the same time."""
    times = sorted((float(words[0]), float(words[1])) for words in told)
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(times))


@pytest.fixture
def gpus(monkeypatch):
    """gpus(count, NAME=value): this machine has so many GPUs, and these variables alone."""

    def set_up(count, **variables):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_up


def test_parallel_runs_share_what_there_is(gpus, monkeypatch):
    """A GPU each, or more runs than GPUs share those; a number of threads that was set stays."""
    # A job with 8 of the machine's cores.
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    gpus(0)
    assert grid.slots_of(2) == [{"OMP_NUM_THREADS": "4"}] * 2
    for count, variables, names in (
        (3, {}, ["0", "1"]),
        (3, {"CUDA_VISIBLE_DEVICES": "3, GPU-5,7"}, ["3", "GPU-5"]),
        (1, {"OMP_NUM_THREADS": "1"}, ["0", "0"]),
    ):
        gpus(count, **variables)
        slots = grid.slots_of(2)
        assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots] == names
        threads = variables.get("OMP_NUM_THREADS", "4")
        assert {slot["OMP_NUM_THREADS"] for slot in slots} == {threads}


def test_no_two_runs_are_on_one_gpu_at_a_time(stub, gpus):
    """Both GPUs are in use, and a failure stops nothing."""
    gpus(2)
    code, said = stub("1,90,91,92,93", "--parallel", "2")
    assert code == 1
    assert "4 of 5 runs are done" in said
    assert len(re.findall(r"(?m)^seed=\d+: (?:done$|failed with code 1)", said)) == 5
    told = logs().values()
    assert {words[2] for words in told} == {"0", "1"}
    for gpu in "01":
        assert not overlaps(words for words in told if words[2] == gpu)
    assert overlaps(told), "two at a time"


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_signal_stops_all_runs(stub, gpus, parallel):
    """Each hears it and says that it was stopped; no further run starts."""
    gpus(0)

    def send():
        while len(list(Path().glob("ready-75*"))) < parallel:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    seeds = {1: "75,90", 2: "75,750,90"}[parallel]
    code, said = stub(seeds, "--parallel", str(parallel))
    thread.join()
    assert code == 75
    assert said.count("stopped by a signal") == parallel
    assert list(logs().values()) == [["heard"]] * parallel


@pytest.mark.parametrize(
    "log, said",
    [
        ("a warning\ntrain.py: --lr 9 is too much\n", "train.py: --lr 9 is too much"),
        ("step 3\n\n  ValueError: no\n\n", "ValueError: no"),
        ("no line break", "no line break"),
        ("bytes \\xff\\xfe\n", "bytes"),
        ("x" * 100_000, "x" * 200),
        ("bar |#| 3\rbar |##| 4", "4"),
        ("", "log"),
    ],
)
def test_why_a_run_failed(stub, log, said):
    """The grid repeats the last line of its log, without what a terminal would do."""
    Path("stub.py").write_text(f"import sys\nsys.stdout.write({log!r})\nsys.exit(2)")
    code, told = stub("0")
    assert code == 1
    (line,) = [line for line in told.splitlines() if "code 2" in line]
    assert said in line
    assert len(line) < 500
    assert line.isprintable()


@pytest.mark.parametrize("ended, code, count", [(75, 75, 1), (0, 0, 2)])
def test_the_exit_code(stub, ended, code, count):
    """After a run that a signal has stopped no further one starts."""
    Path("stub.py").write_text(f"import sys\nprint(*sys.argv[1:])\nsys.exit({ended})")
    assert stub("0,1")[0] == code
    assert len(logs()) == count
    out = "sweep/seed=0"
    assert logs()["0"] == ["maze9_laptop", "--seed=0", "--out", out, "--resume", "auto"]
