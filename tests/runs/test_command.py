"""The command `maxrl`, in the repository and in an installed package; nothing is downloaded."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

from maxrl import __main__ as command


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


def test_the_command_becomes_the_program_that_is_asked_for(becomes, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["maxrl"]
    assert entry == f"{command.__name__}:{command.main.__name__}"
    for name in command.SCRIPTS:
        assert becomes(name, "a", "--b=c d") == (
            sys.executable,
            [sys.executable, str(ROOT / f"{name}.py"), "a", "--b=c d"],
        )
    for name in command.MODULES:
        assert becomes(name, "a") == (sys.executable, [sys.executable, "-m", f"maxrl.{name}", "a"])
        assert (ROOT / f"maxrl/{name}.py").exists()
    assert all(f" {name} " in command.__doc__ for name in (*command.SCRIPTS, *command.MODULES))
    for words, code in (((), 0), (("--help",), 0), (("trian",), 2)):
        with pytest.raises(SystemExit) as end:
            becomes(*words)
        assert end.value.code == code and "maxrl train" in capsys.readouterr().out


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package as setuptools installs it, built from a copy of the repository."""
    pytest.importorskip("setuptools")
    copy, target = tmp_path_factory.mktemp("copy") / "maxrl", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "maxrl", copy / "maxrl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "train.py", "eval.py", "sample.py"):
        shutil.copy(ROOT / name, copy)
    build = [
        sys.executable,
        "-c",
        "import setuptools; setuptools.setup()",
        "-q",
        "build_py",
        "--build-lib",
        str(target),
    ]
    subprocess.run(build, cwd=copy, check=True, capture_output=True)
    return target


def test_an_installed_package_has_every_file(installed):
    def sources(folder):
        return {
            file.relative_to(folder).as_posix()
            for kind in ("py", "html")
            for file in folder.rglob(f"*.{kind}")
        }

    scripts = {f"maxrl/scripts/{name}.py" for name in command.SCRIPTS}
    assert sources(installed) == {f"maxrl/{file}" for file in sources(ROOT / "maxrl")} | scripts


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ["maze9_laptop", "--task", f"{ROOT}/results/texts/tasks.py:SubsetSum"],
            "or make this one with the recipe maze9_laptop_sft\n",
        ),
        (
            ["maze17"],
            "in a clone of the repository, run python -m data.maze.prepare --size 17\n",
        ),
    ],
)
def test_an_installed_command_works_without_the_repository(installed, tmp_path, arguments, words):
    run = subprocess.run(
        [sys.executable, "-m", "maxrl", "train", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )
    assert (
        run.returncode == 2 and run.stderr.startswith("train.py: ") and run.stderr.endswith(words)
    )
    assert not list(Path(tmp_path).iterdir())


def test_code_in_the_current_directory_is_not_run(installed, tmp_path):
    """A run of somebody else's may hold a file that is called as a module is."""
    for name in ("html", "matplotlib", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('mark', 'w')")
    for name in ("report", "plots"):
        subprocess.run(
            [sys.executable, "-m", "maxrl", name, "."],
            cwd=tmp_path,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": str(installed)},
        )
    assert not (tmp_path / "mark").exists()


def test_hints_hold_where_a_run_was_started(tmp_path):
    """The next command, from a directory outside the clone and from the clone itself."""
    code = "from maxrl.run import cli; print(' '.join(cli.module('maxrl.toy')))"
    for folder in (tmp_path, ROOT):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
        )
        command = done.stdout.strip().replace("python ", f"{sys.executable} ", 1)
        bare = {"PATH": "/usr/bin:/bin"}
        shown = subprocess.run(
            f"{command} --help", shell=True, cwd=folder, env=bare, capture_output=True
        )
        assert shown.returncode == 0, shown
