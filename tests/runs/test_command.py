"""The command `maxrl`, in the repository and in an installed package; nothing is downloaded."""

import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from maxrl import __main__ as command
from maxrl.learning.config import Config
from maxrl.run import banner, cli
from maxrl.system.arguments import guess
from tests import ROOT
from tests.helpers.runs import refused
from tests.helpers.started import python
from tests.helpers.tables import each


@pytest.fixture
def becomes(monkeypatch):
    """becomes("train", "x") -> what the process is replaced by."""
    found = []
    monkeypatch.setattr(os, "execv", lambda program, words: found.append((program, words)))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["maxrl", *words])
        command.main()
        return found.pop()

    return run


def test_the_next_commands_are_those_that_can_be_typed():
    """Sets of images have no test split, demonstrations no verdict, and rows that end alike are
    called by their whole paths."""

    def said(out="runs/x", **fields):
        return "\n".join(banner.next_commands(Config(out=out, **fields), out))

    assert "eval runs/x --split validation" in said(task="images")
    warm_up = said(task="prompts", task_options={"train": "mine.jsonl"}, estimator="supervised")
    assert "report" in warm_up and "eval" not in warm_up and "sample" not in warm_up


@pytest.mark.parametrize("name", [*command.SCRIPTS, *command.MODULES])
def test_the_command_becomes_the_program_that_is_asked_for(becomes, name):
    module = command.MODULES.get(name)
    known = ["-m", module] if module else [f"{ROOT}/{name}.py"]
    assert becomes(name, "a", "--b=c d") == (
        sys.executable,
        [sys.executable, *known, "a", "--b=c d"],
    )
    file = f"{module.replace('.', '/')}.py" if module else f"{name}.py"
    assert (ROOT / file).exists()
    assert f" {name} " in command.__doc__


@pytest.mark.parametrize("words, code", [([], 0), (["--help"], 0), (["trian"], 2)])
def test_help_and_a_mistake(becomes, capsys, words, code):
    with pytest.raises(SystemExit) as end:
        becomes(*words)
    assert end.value.code == code
    assert "maxrl train" in capsys.readouterr().out


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package as setuptools installs it, built from a copy of the repository."""
    pytest.importorskip("setuptools")
    copy = tmp_path_factory.mktemp("copy") / "maxrl"
    target = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "maxrl", copy / "maxrl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "train.py", "eval.py", "sample.py"):
        shutil.copy(ROOT / name, copy)
    build = "import setuptools; setuptools.setup()"
    python("-c", build, "-q", "build_py", "--build-lib", target, cwd=copy, check=True)
    return target


@pytest.fixture
def run_installed(installed, tmp_path):
    """run_installed("train", "maze17") -> that command of the installed package, ended."""

    def run(*words):
        return python("-m", "maxrl", *words, cwd=tmp_path, env={"PYTHONPATH": str(installed)})

    return run


def test_an_installed_package_has_every_file(installed):
    def sources(folder):
        return {
            file.relative_to(folder).as_posix()
            for kind in ("py", "html")
            for file in folder.rglob(f"*.{kind}")
        }

    scripts = {f"maxrl/scripts/{name}.py" for name in command.SCRIPTS}
    assert sources(installed) == {f"maxrl/{file}" for file in sources(ROOT / "maxrl")} | scripts


def test_an_installed_command_works_without_the_repository(run_installed, tmp_path):
    done = run_installed("train", "maze9_laptop")
    assert done.returncode == 2
    assert done.stderr.startswith("train.py: ")
    words = "in a clone of the repository, run python -m data.maze.prepare --size 9"
    assert words in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["report", "plots"])
def test_code_in_the_current_directory_is_not_run(run_installed, tmp_path, name):
    """A run of somebody else's may hold a file that is called as a module is."""
    for module in ("html", "matplotlib", "numpy"):
        (tmp_path / f"{module}.py").write_text("open('mark', 'w')")
    run_installed(name, ".")
    assert not (tmp_path / "mark").exists()


@pytest.fixture
def prints(shell, monkeypatch):
    """prints("ascii", words...) -> the exit code, and what a terminal of this encoding gets."""

    def run(encoding, *words):
        terminal = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", terminal)
        code, said = shell(*words)
        terminal.flush()
        return code, terminal.buffer.getvalue().decode(encoding) + said

    return run


RECIPE = """
def recipe():
    "Für uns."
    from maxrl.learning.config import Config
    return Config()
"""


@pytest.mark.parametrize(
    "words",
    [
        "eval.py é --task tests.helpers.tiny:Up --samples 2 --prompts 2 --max-response 6",
        "sample.py é é --task tests.helpers.tiny:Up --samples 2 --max-response 6",
        "train.py é.py:recipe --help",
        "maxrl/analysis/report.py RUN --out é.html",
        "maxrl/analysis/plots.py --weights maxrl --rollouts 2 --out é.png",
        "maxrl/analysis/toy.py --steps 1 --out é",
        "data/maze/prepare.py --size 7 --train 3 --validation 2 --test 2 --workers 1 --out é",
        "data/word_problems/prepare.py --train 3 --validation 2 --test 2 --out é",
    ],
)
def test_a_terminal_that_cannot_show_everything(prints, dice, recorded, words):
    """A character that it lacks is an escape, and what was computed is not lost."""
    Path("é.py").write_text(RECIPE)
    Path("é").mkdir() if "--out é" in words else Path("é").symlink_to(dice)
    code, said = prints("ascii", *words.replace("RUN", str(recorded.path)).split())
    assert code == 0, said
    assert "\\x" in said


BARE = """
import runpy, sys
for name in {names}:
    sys.argv = [name, "--help"]
    try:
        runpy.run_path(f"{root}/{{name}}", run_name="__main__")
    except SystemExit as end:
        assert not end.code, name
"""


def test_help_without_docstrings():
    """`python -OO` has none."""
    names = ["train.py", "eval.py", "data/maze/prepare.py"]
    names += [f"{module.replace('.', '/')}.py" for module in command.MODULES.values()]
    code = BARE.format(names=names, root=ROOT)
    done = python("-OO", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: eval.py" in done.stdout


HALVES = """
WORLD_SIZE=1
WORLD_SIZE=2 RANK=0
WORLD_SIZE=1 RANK=0 MASTER_ADDR=localhost
WORLD_SIZE=1 RANK=0 MASTER_ADDR=localhost MASTER_PORT=none
WORLD_SIZE=
WORLD_SIZE=two RANK=0 MASTER_ADDR=localhost MASTER_PORT=29500
"""


@each("variables", HALVES)
@pytest.mark.parametrize("words", ["train.py tiny", "eval.py DICE", "sample.py DICE"])
def test_half_of_the_variables_of_a_launcher(shell, monkeypatch, dice, words, variables):
    """As images of containers have them."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    more = "" if words.startswith("train") else " --task tests.helpers.tiny:Up --max-response 6"
    refused(shell(*(words + more).replace("DICE", str(dice)).split()), "WORLD_SIZE", "torchrun")


@pytest.mark.parametrize(
    "encoding, text, shown",
    [
        ("ascii", "± 0.1", r"\xb1 0.1"),
        ("cp1252", "“é” 数", r"“é” \u6570"),
        ("utf-8", "a name that is not UTF-8: \udce9", r"a name that is not UTF-8: \udce9"),
    ],
)
def test_what_cannot_be_encoded_is_escaped(monkeypatch, encoding, text, shown):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", terminal)
    with cli.script("a program"):
        print(text, flush=True)
    assert terminal.buffer.getvalue().decode(encoding).strip() == shown


def test_what_looks_like_a_number():
    """Of an option without a type; what a number would not give back stays a text."""
    numbers = {"8": 8, "-3": -3, "0": 0, "0.5": 0.5, ".5": 0.5, "1e-3": 1e-3, "true": True}
    for text, value in numbers.items():
        assert guess(text) == value and type(guess(text)) is type(value)
    for text in ("007", "2024_25", "", ".", "-", "1e", "+5", " 5"):
        assert guess(text) == text
