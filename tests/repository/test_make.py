"""The Makefile's environment, with programs that only say that they are Python: no network, no installation."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")
STUB = """#!/bin/sh
echo "{name} $*" >> {log}
case "$1 $2" in
    "-c "*) exec {python} -S -E -c "import sys; sys.version_info = ({version}, 1, 'final', 0)
$2" ;;
    "-m venv") for last; do :; done; rm -rf "$last"; mkdir -p "$last/bin"; touch "$last/pyvenv.cfg"
        cp "$0" "$last/bin/python" ;;
esac
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """make("toy", "PYTHON=./new") -> (code, what it said, the commands that a Python got, versions aside)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in (
        "MAKEFLAGS",
        "MFLAGS",
        "MAKELEVEL",
        "MAKEOVERRIDES",
        "PYTHON",
        "VENV",
    ):  # as of `make test PYTHON=...`
        monkeypatch.delenv(name, raising=False)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, name)
    log = tmp_path / "log"
    for name, version in {
        "old": "3, 10",
        "python3": "3, 10",
        "new": "3, 12",
        "newer": "3, 13",
    }.items():
        Path(name).write_text(
            STUB.format(name=name, log=log, python=sys.executable, version=version)
        )
        Path(name).chmod(0o755)

    def run(*arguments):
        log.write_text("")
        result = subprocess.run(["make", *arguments], capture_output=True, text=True)
        called = [
            line
            for line in log.read_text().splitlines()
            if not line.split(" ", 1)[1].startswith("-c ")
        ]
        return result.returncode, result.stdout + result.stderr, called

    return run


def test_an_old_python_is_refused_before_anything_is_made(make):
    code, said, called = make("toy")  # with python3, which is 3.10
    assert (
        code
        and "maxrl needs Python 3.11 or later and python3 is not: make toy PYTHON=python3.12"
        in said
    )
    assert not called and not Path(".venv").exists()
    code, said, called = make("toy", "PYTHON=no-such-python")
    assert code and "no-such-python is not: make toy PYTHON=python3.12" in said and not called


def test_the_environment_is_made_anew_for_another_python(make):
    def made(called):
        return [line for line in called if " venv " in line]

    subprocess.run(
        ["./old", "-m", "venv", ".venv"], check=True
    )  # what the Makefile once left of a first try
    code, said, called = make("toy", "PYTHON=new")
    assert (
        code == 0
        and made(called) == ["new -m venv --clear .venv"]
        and "new -m maxrl.toy --out runs" in called
    ), said
    assert any("pip install" in line for line in called)
    for again in (("toy",), ("toy", "PYTHON=new")):  # python3 is too old, and nobody asks for it
        assert make(*again) == (
            0,
            ".venv/bin/python -m maxrl.toy --out runs\n",
            ["new -m maxrl.toy --out runs"],
        )
    code, said, called = make("toy", "PYTHON=newer")
    assert (
        code == 0
        and made(called) == ["newer -m venv --clear .venv"]
        and called[-1] == "newer -m maxrl.toy --out runs"
    ), said
    assert make("toy", "PYTHON=old")[0] and Path(".venv").exists(), (
        "refused, and nothing is removed"
    )

    subprocess.run(["./old", "-m", "venv", "mine"], check=True)
    code, said, called = make("toy", "PYTHON=new", "VENV=mine")
    assert code and "name another VENV, or remove it" in said and not made(called)
