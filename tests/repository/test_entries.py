"""Whatever can be started is started by a test: every program, target and study. Every
command that they or a page print is read by the program it names."""

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from maxrl.__main__ import MODULES
from maxrl.run import command_line, grid
from maxrl.system.errors import UsageError
from results.lab import __main__ as lab
from tests import ROOT
from tests.repository import machines
from tests.repository.pages import FOLDERS, PAGES, TARGETS, commands

# What one can start, and the words with which it is run here or the test that runs it. A new
# program of the tree needs a line.
STARTED = {
    "train.py": "tests/runs/test_train.py",
    "eval.py": "tests/runs/test_eval.py",
    "sample.py": "tests/tasks/test_own_data.py",
    "maxrl/__main__.py": "tests/runs/test_command.py",
    "maxrl/run/grid.py": "maze9_laptop --help",
    "maxrl/run/merge.py": "tests/runs/test_lora_runs.py",
    "maxrl/minimal.py": "--help",
    "maxrl/analysis/plots.py": "MODEL --out training.png",
    "maxrl/analysis/report.py": "MODEL --out report.html",
    "maxrl/single_file.py": "tests/learning/test_single_file.py",
    "maxrl/analysis/toy.py": "--steps 2 --out toy",
    "data/aime/prepare.py": "tests/tasks/test_prepare_text.py",
    "data/beyondaime/prepare.py": "tests/tasks/test_prepare_text.py",
    "data/gsm8k/prepare.py": "tests/tasks/test_prepare_text.py",
    "data/imagenet/prepare.py": "--help",
    "data/math500/prepare.py": "tests/tasks/test_prepare_text.py",
    "data/maze/prepare.py": "--size 7 --train 4 --validation 2 --test 2 --workers 1 --out mazes",
    "data/minerva/prepare.py": "tests/tasks/test_prepare_text.py",
    "data/polaris/prepare.py": "tests/tasks/test_prepare_text.py",
    "data/smollm2/prepare.py": "--help",
    "data/word_problems/prepare.py": "--help",
    "results/lab/guessing.py": "tests/results/test_lab.py",
    "results/lab/__main__.py": "mazes9 runs --only weak/seed10 --dry-run",
    "results/maze13_end/neighbours.py": "dapo maze9_laptop --help",
    "results/minimal/study.py": "tests/results/test_studies.py",
    "results/images/expected.py": "--help",
    "results/images/glyphs.py": "--help",
    "results/page.html": "tests/repository/test_page.py",
    "results/speed/speedrun.py": "--help",
    "results/tour.ipynb": "tests/results/test_tour.py",
    "tests/bench/bench.py": "tests/bench/test_bench.py",
    "tests/bench/bench_rounds.py": "tests/bench/test_bench.py",
    "tests/bench/replay.py": "--steps 1 --only maze17",
    "tests/faults/torture.py": "tests/faults/test_torture.py",
    "tests/gpu/gpu_check.py": "tests/gpu/test_gpu_check.py",
    "tests/gpu/simulated/cuda.py": "--help",
    "tests/gpu/simulated/settings.py": "tests/gpu/test_simulated.py",
    "tests/helpers/busy.py": "--help",
    "tests/ranks/worker.py": "tests/ranks/test_distributed.py",
    "tests/ranks/nodes.py": "tests/ranks/test_nodes.py",
    "tests/repository/machines.py": "tests/repository/test_entries.py",
    "tests/repository/mutations.py": "--help",
    "tests/tasks/verdicts.py": "tests/tasks/test_verify_math.py",
}
# A stand-in for Python: it notes its words, and a training leaves the directory of a finished run.
PYTHON = r"""#!/bin/bash
[ "$1" = -c ] && exec {python} "$@"
[ "$1" = - ] && exec cat > /dev/null
steps=60
for word in "$@"; do
    case $before in --out) out=$word ;; --steps) steps=$word ;; esac
    before=$word
done
if [ "$1" = train.py ] && [ "$out" ]; then
    mkdir -p "$out" && printf step-%06d "$steps" > "$out/latest"
fi
line=$(printf '%q ' "$@") && echo "$line" >> {said}
"""


def programs() -> set[str]:
    """Every file that does something when it is started, except tests."""
    found = [*ROOT.glob("results/*.ipynb"), *ROOT.glob("results/*.html")]
    files = [*ROOT.glob("*.py"), *(f for name in FOLDERS for f in (ROOT / name).rglob("*.py"))]
    for file in files:
        starts = re.search(r'(?m)^if __name__ == "__main__":', file.read_text())
        if starts and not file.name.startswith("test_"):
            found.append(file)
    return {file.relative_to(ROOT).as_posix() for file in found}


def test_every_program_is_started():
    """The table has the programs of the tree, and a test that is named speaks of its program."""
    assert set(STARTED) == programs()
    for program, how in STARTED.items():
        if how.startswith("tests/"):
            names = "|".join(Path(program).with_suffix("").parts[-2:])
            assert re.search(rf"\b({names})\b", (ROOT / how).read_text()), program


@pytest.mark.parametrize(
    "program", [name for name, how in STARTED.items() if not how.startswith("tests/")]
)
def test_a_program_runs(program, warm, monkeypatch, in_a_directory_of_its_own):
    """It ends well; of results/ a copy, since some write beside themselves."""
    pytest.importorskip("matplotlib")
    Path("MODEL").symlink_to(warm)
    file = ROOT / program
    if program.startswith("results/"):
        file = Path(program)
        file.parent.mkdir(parents=True)
        shutil.copy(ROOT / program, file)
    monkeypatch.setattr("sys.argv", [program, *STARTED[program].split()])
    try:
        runpy.run_path(str(file), run_name="__main__")
    except SystemExit as end:
        assert not end.code


def test_the_rows_of_machines(monkeypatch, tmp_path, capsys):
    """Every row starts the suite in its environment; the worst exit code is that of all. What has
    failed is printed."""
    told = []

    def suite(words, env, stdout, stderr):
        stdout.write("= FAILURES =\nwhat failed\n" * (len(told) == 1) + "the last line\n")
        told.append(env.get("ATEN_CPU_CAPABILITY"))
        return subprocess.CompletedProcess(words, len(told) == 2)

    monkeypatch.setattr(machines, "OUT", tmp_path)
    monkeypatch.setattr(subprocess, "run", suite)
    assert machines.main(["native", "smallest", "avx2"]) == 1
    assert told[1:] == ["default", "avx2"]
    said = capsys.readouterr().out
    assert said.count("the last line") == 4 and said.count("what failed") == 1


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """started("demo") -> the commands of Python that the target gives, of one that only notes."""
    if not shutil.which("make"):
        pytest.skip("there is no make")
    place = tmp_path_factory.mktemp("started")
    for file in ROOT.iterdir():
        if not file.name.startswith((".", "runs")) and "egg-info" not in file.name:
            (place / file.name).symlink_to(file)
    said = place / "said"
    (place / "bin").mkdir()
    python = place / "bin/python"
    python.write_text(PYTHON.format(python=sys.executable, said=said))
    python.chmod(0o755)
    kept = {name: v for name, v in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}
    kept |= {"PATH": f"{python.parent}:{kept['PATH']}", "JOBS": "2"}

    def start(target):
        said.write_text("")
        command = ["make", target, "PYTHON=python", "VENV=", "GPUS=2"]
        done = subprocess.run(command, cwd=place, env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [shlex.split(line) for line in said.read_text().splitlines()]

    return start


class Read(BaseException):
    """The program has read its words."""


@pytest.fixture
def read(monkeypatch):
    """read(words) lets the program that is named read them, and do no more."""
    monkeypatch.chdir(ROOT)
    parse = argparse.ArgumentParser.parse_known_args

    def stop(parser, *given):
        _, unknown = parse(parser, *given)
        assert not unknown, unknown
        raise Read

    def read(words):
        if words[:2] == ["-m", "torch.distributed.run"]:
            script = [word.endswith(".py") for word in words].index(True)
            words = words[script:]
        file, *rest = words
        if file == "-m":
            path, *rest = rest
            file = path.replace(".", "/")
            file += "/__main__.py" if Path(file).is_dir() else ".py"
        if file == "maxrl/__main__.py":
            # It becomes another program; a sentence may name that alone.
            name, *rest = rest
            other = ["-m", MODULES[name]] if name in MODULES else [f"{name}.py"]
            if rest:
                read([*other, *rest])
        elif file not in STARTED:
            # A program of somebody else's.
            assert Path(file).parts[0] not in FOLDERS, words
            assert all(Path(word).exists() for word in rest if word.startswith("tests/")), words
        elif file == "train.py":
            if not lacking(rest):
                command_line.read_recipe(rest, "")
        elif file == "maxrl/run/grid.py":
            assert grid.main(rest) is None
        elif file.startswith("data/") or re.search("argparse|arguments", Path(file).read_text()):
            monkeypatch.setattr("sys.argv", [file, *rest])
            with monkeypatch.context() as patch, pytest.raises(Read):
                patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
                runpy.run_path(file, run_name="__main__")

    monkeypatch.setattr(grid, "run_all", lambda *given: None)
    monkeypatch.setattr(command_line.dry_run, "dry_run", lambda *given: "")
    return read


def lacking(words: list[str]) -> bool:
    """Whether a file of the user's own is named, which a page has and the repository has not."""
    files = [word.partition(":")[0] for word in words]
    return any(file.endswith((".py", "recipe.json")) and not Path(file).exists() for file in files)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_gives_commands(target, started, read):
    for words in started(target):
        read(words)


@pytest.mark.parametrize("study", [name for name in lab.STUDIES if name != "comparison"])
def test_a_study_gives_commands(study, read):
    """Every run and every test of it is read by the program that it names."""
    for stage in lab.runs_of(study).values():
        for words in stage.values():
            read(words)
    for words in lab.tests_of(study).values():
        read([*words, "--json", "file"])


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(page, read):
    """Those with a placeholder are left out."""
    for command in commands(PAGES[page]):
        command = re.sub(r"^(train|eval|sample)\.py (?=\w)", r"python \g<0>", command)
        match = re.search(r"\b(python|torchrun|make) (.*)", command)
        if not match or re.search(r"\.\.\.|\[|\bRECIPE\b|\bSTUDY\b|NAME|DIR", command):
            continue
        words = shlex.split(match[2].rstrip("'\""))
        if match[1] == "make":
            named = {word for word in words if re.fullmatch("[a-z][a-z0-9-]*", word)}
            assert named <= set(TARGETS), command
        elif words[0] == "-m" and len(words) == 2:
            # The name of a program, or a command without options.
            assert (ROOT / words[1].replace(".", "/")).with_suffix(".py").exists(), command
        else:
            read(["-m", "torch.distributed.run"] * (match[1] == "torchrun") + words)


def test_a_wrong_command_is_noticed(read):
    for words in ("train.py maze9 --lr 1", "train.py maze9_laptop --lrr 1", "eval.py x --ks 1"):
        with pytest.raises((UsageError, SystemExit, AssertionError)):
            read(words.split())
