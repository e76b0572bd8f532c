"""What the READMEs print runs as printed: Python, commands, options, recipes and links."""

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
from itertools import product
from pathlib import Path

import pytest

from maxrl.__main__ import MODULES
from maxrl.advantages import ADVANTAGES, weight
from maxrl.models import checkpoint
from maxrl.models.hf_config import FAMILIES
from maxrl.models.resnet import MODEL_TYPE
from maxrl.models.rope import TYPES
from maxrl.system.user_code import import_object
from tests import ROOT
from tests.helpers.runs import metrics, passed, weights
from tests.repository.pages import ALL, ORDER, PAGES, block, blocks, prose, section, words


def run_code(code: str, names: dict | None = None):
    exec(compile(code, "README.md", "exec"), {} if names is None else names)


def run_module(command: list[str], monkeypatch):
    """Run `python -m maxrl NAME ...` in this process."""
    *_, name = start = command[:4]
    assert start == ["python", "-m", "maxrl", name]
    monkeypatch.setattr("sys.argv", command[3:])
    runpy.run_module(MODULES[name], run_name="__main__")


def test_python_in_ten_lines(own, warm, capsys):  # noqa: F811
    """Word for word, with a checkpoint called MODEL and a file of two rows; the learning rate alone
    is raised, to see that it learns something."""
    code = block("import torch", "checkpoint.save")
    assert len(re.findall(r"(?m)^    ", code)) < 10, "the loop"
    Path("MODEL").symlink_to(warm)
    rows = Path("mine.jsonl").read_text().splitlines(keepends=True)
    Path("mine.jsonl").write_text("".join(rows[:2]))
    run_code(code.replace("1e-6", "1e-3"))
    steps = r"step 0: reward \d\.\d{3}\nstep 1: reward \d\.\d{3}\n"
    assert re.fullmatch(steps, capsys.readouterr().out)
    assert Path("trained/model.safetensors").read_bytes() != weights("MODEL")


def test_your_own_task(own, warm, shell):  # noqa: F811
    code = block("import random\nfrom maxrl.tasks", "        return float(")
    assert len(re.findall(r"(?m)^.*\S", code)) <= 20
    Path("sums.py").write_text(code)
    task = "--task sums.py:Sums --task.largest 50 --max-response 10 --max-prompt 0"
    few = "--prompts 4 --rollouts 4 --steps 1 --out run"
    passed(shell("train.py", "prompts", *task.split(), *few.split(), "--init", warm))
    assert len(metrics("run")) == 1


def test_a_model_from_scratch(shell, in_a_directory_of_its_own):
    """Both commands as printed, but for a few steps: the task's words become the model's."""
    Path("digits.py").write_text(block("import random\nfrom dataclasses", "    return replace("))
    (warm_up,) = words("python train.py digits.py:")
    (rl,) = words("python train.py prompts --task digits.py:")
    for command, steps, run in ((warm_up, 3, "runs/digits_sft"), (rl, 2, "runs/digits")):
        passed(shell(*command[1:], "--steps", steps))
        assert len(metrics(run)) == steps
        assert checkpoint.load_tokenizer(run).encode("<bos> 0 9") == [1, 4, 13]


def test_the_models_are_those_of_the_code():
    """The table of models and the kinds of rotary positions are the registries', in their order."""
    models = section("Models")
    assert re.findall(r"(?m)^\| `(\w+)` \|", models)[1:] == [*FAMILIES, MODEL_TYPE]
    rotary = re.search(r"Rotary positions are (.*)\.\s", models)[1]
    assert re.findall(r"`(\w+)`", rotary) == list(TYPES)


# What the script is told by Slurm, and the programs that it starts; srun starts two of the ranks.
SLURM = {"SLURM_JOB_NODELIST": "node[7-10]", "SLURM_JOB_ID": "5"}
TOOLS = {
    "scontrol": 'echo "scontrol $@" >> said; echo node7',
    "python": 'echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $MASTER_ADDR python $@" '
    ">> said; exit $CODE",
    "srun": "shift 2; export SLURM_NTASKS=32 SLURM_NTASKS_PER_NODE=8; "
    'SLURM_PROCID=8 SLURM_LOCALID=0 "$@"; SLURM_PROCID=9 SLURM_LOCALID=1 "$@"',
}
TRAIN = "node7 python train.py polaris_qwen3_1_7b --resume auto --save-every-minutes 30"


CODES = [*product((0, 2, 74, 137), (0, 1000), (False,)), *product((75,), (0, 1000), (True,))]
CODES += [(code, seconds, seconds > 900) for code in (138, 143) for seconds in (0, 1000)]


@pytest.mark.parametrize("code, seconds, again", CODES)
def test_the_slurm_script(tmp_path, code, seconds, again):
    """What the ranks are told, what is run, and what follows from how it ends, and when: srun gives
    143 for ranks that it has ended because one has refused.
    """
    script = (ROOT / "maxrl/run/slurm.sh").read_text()
    for name, body in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    told = SLURM | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CODE": str(code)}
    told["SECONDS"] = str(seconds)  # since the script has started
    bash = {"input": script, "text": True, "capture_output": True}
    result = subprocess.run(["bash", "-u"], env=told, cwd=tmp_path, **bash)
    assert result.returncode == code
    assert result.stderr == ""
    expected = ["scontrol show hostnames node[7-10]", f"8 0 8 32 {TRAIN}", f"9 1 8 32 {TRAIN}"]
    expected += ["scontrol requeue 5"] * again
    assert (tmp_path / "said").read_text().splitlines() == expected


def test_every_file_exists():
    files = re.findall(r"`((?:maxrl|data|tests|results)/[\w/.]+\.\w+)`", ALL)
    assert not [file for file in files if "NAME" not in file and not (ROOT / file).exists()]


def anchors(page: str) -> set[str]:
    """The names by which the sections of a page are linked to."""
    titles = re.findall(r"(?m)^#+ (.*)", page)
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    page = PAGES[name]
    named = dict(re.findall(r"(?m)^\[(\w+)\]: (\S+)", page))
    assert set(re.findall(r"\]\[(\w+)\]", prose(page))) == set(named)
    for link in [*re.findall(r"\]\(([^)\s]+)\)", prose(page)), *named.values()]:
        file, _, title = link.partition("#")
        target = (ROOT / name).parent / file if file else ROOT / name
        if not link.startswith("https://"):
            assert target.exists(), link
            assert not title or title in anchors(target.read_text()), link


def test_every_estimator_exists():
    named = set(re.findall(r"--estimator ([a-z_]+)(?![\w.])", ALL))
    assert named
    assert named <= set(ADVANTAGES)
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", section("Estimators"))) == set(ADVANTAGES)


def test_what_your_own_estimator_weighs(in_a_directory_of_its_own, monkeypatch, capsys):
    """The commands as printed, the simulation with fewer steps."""
    pytest.importorskip("matplotlib")
    Path("mine.py").write_text(block("import torch\n\n\ndef root", "    return torch.where"))
    run_code(block("from maxrl.advantages import weight", "print(weight"))
    expected = weight("mine.py:root", 0.01, rollouts=16, power=0.25)
    assert float(capsys.readouterr().out) == pytest.approx(expected)
    (plots,) = words("python -m maxrl plots --weights")
    (toy,) = words("python -m maxrl toy --estimator")
    for command in (plots, [*toy, "--steps", "2"]):
        run_module(command, monkeypatch)
    assert "mine.py:root  " in capsys.readouterr().out
    assert {"weights.png", "toy"} <= set(os.listdir())


def printed_rows(page: str) -> list[str]:
    """The two rows of a data set that a page prints."""
    rows = re.findall(r'(?m)^(\{"prompt".*\})$', PAGES[page])
    assert len(rows) == 2
    return rows


def test_your_own_data(warm, shell, monkeypatch):
    """The lines of mine.jsonl, rewards.py and the commands, with a checkpoint in place of the small
    model; two steps."""
    rows = printed_rows("README.md")
    Path("mine.jsonl").write_text("\n".join(rows))
    Path("rewards.py").write_text(block("from maxrl.tasks.verifiers", "    return [verify_number"))
    correct = import_object("rewards.py:correct", "--reward")
    answers = [json.loads(row)["answer"] for row in rows]
    assert correct([r"3+4=7 eggs.\n\boxed{7}", r"\boxed{7}"], answers) == [1, 0]
    Path("runs").mkdir()
    Path("runs/gsm8k_laptop_sft").symlink_to(warm)
    command = words("python train.py prompts --init runs/gsm8k_laptop_sft")[0]
    said = passed(shell(*command[1:], "--steps", 2))
    assert [row["reward"] for row in metrics("runs/prompts-maxrl")] == [0, 0]
    (report,) = words("python -m maxrl report runs/prompts-maxrl")
    run_module(report, monkeypatch)
    assert "rewards.py:correct" in Path("runs/prompts-maxrl/report.html").read_text()
    # The run's last lines say how to look at it, and these commands run as they stand there.
    for script in ("sample", "eval"):
        (options,) = re.findall(rf"(?m)^  \w+ +python.* {script}(?:\.py)? (.*)$", said)
        shown = passed(shell(f"{script}.py", *shlex.split(options), "--samples", 4))
    assert "prompts-maxrl minus each" in shown


def test_two_tasks_in_one_run(warm, shell):
    """Each function judges its own prompts, and its mean is over them alone."""
    Path("MODEL").symlink_to(warm)
    last = '    return [float(c.strip() == a) if k == "text"'
    Path("mixed.py").write_text(block("def sums", last))
    rows = "\n".join(printed_rows("data/README.md"))
    Path("mixed.jsonl").write_text(rows.replace("cba", ""))
    (command,) = words("python train.py prompts --reward mixed.py:sums,mixed.py:backwards")
    few = "--prompts 2 --rollouts 8 --steps 1 --max-response 1 --out run"
    passed(shell(*command[1:], *few.split()))
    row = metrics("run")[0]
    parts = [row[f"rewards/{name}/mean"] for name in ("sums", "backwards")]
    assert row["reward"] == pytest.approx(sum(parts) / 2)
    assert row["rewards/groups_left_out"] == 0
    assert row["rewards/disagreement/mean"] is None  # no prompt is of both kinds


def the_map() -> str:
    """The rooms in the order of their imports, each with the first line of its docstring."""
    lines = []
    for room in ORDER:
        file = ROOT / "maxrl" / room / "__init__.py"
        first, *_ = ast.get_docstring(ast.parse(file.read_text())).splitlines()
        lines.append(f"{room + '/':13}{first}")
    return "\n".join(lines)


def test_the_map_has_every_room():
    """The map is what the rooms say of themselves, the public names exist, and the reading path is
    ten files."""
    shown, names = blocks(section("The map"))
    assert shown.strip() == the_map()
    exec(names, {})
    files = [ROOT / "train.py", *ROOT.glob("maxrl/**/*.py")]
    read = re.findall(r"(?m)^(\d+)\. `([\w/.]+)`: ", PAGES["maxrl/README.md"])
    assert [number for number, _ in read] == [str(i) for i in range(1, 11)]
    assert {file for _, file in read} <= {file.relative_to(ROOT).as_posix() for file in files}
