"""What the README prints runs as printed: its Python, its options, its recipes."""

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from test_classifier import recipe, set_of_glyphs  # noqa: F401  (fixtures)
from test_own_data import own  # noqa: F401
from test_train import metrics, weights

from maxrl.advantages import ADVANTAGES
from maxrl.config import Config
from maxrl.io.arguments import dashed
from maxrl.recipes import RECIPES

README = (ROOT / "README.md").read_text()


def block(first: str, last: str) -> str:
    """The indented lines of the README from the one that begins with `first` to the one that begins with `last`."""
    found = re.search(rf"^    {re.escape(first)}.*?^    {re.escape(last)}.*?$", README, re.M | re.S)
    return textwrap.dedent(found.group(0))


def test_python_in_ten_lines(own, warm, capsys):  # noqa: F811
    """Word for word, with a checkpoint called MODEL and a file of two rows; the learning rate alone is raised, to see that it
    learns something."""
    code = block("import torch", "learner.save")
    assert len([line for line in code.splitlines() if line.startswith("    ")]) < 10, "the loop"
    Path("MODEL").symlink_to(warm)
    Path("mine.jsonl").write_text("".join(Path("mine.jsonl").read_text().splitlines(keepends=True)[:2]))
    exec(compile(code.replace("1e-6", "1e-3"), "README.md", "exec"), {})
    assert re.fullmatch(r"step 0: reward \d\.\d{3}\nstep 1: reward \d\.\d{3}\n", capsys.readouterr().out)
    assert Path("trained/model.safetensors").read_bytes() != weights("MODEL")


def test_your_own_task(own, warm, shell):  # noqa: F811
    code = block("# sums.py", "        return float(")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    Path("sums.py").write_text(code)
    arguments = ["--prompts", 4, "--rollouts", 4, "--steps", 1, "--max-response", 10, "--max-prompt", 0, "--out", "run"]
    said = shell("train.py", "prompts", "--task", "sums.py:Sums", "--task.largest", 50, "--init", warm, *arguments)
    assert said[0] == 0 and len(metrics("run")) == 1, said[1]


def test_every_metric_is_defined(own, recipe, warm, shell):  # noqa: F811
    """What runs of every kind write is what the table has, no more and no less. In a row of it the names after one with a
    slash share its first part."""
    pytest.importorskip("math_verify")
    Path("words").mkdir()
    for name, text in (("train.jsonl", '{"problem": "UP", "answer": "5"}\n' * 4), ("info.json", '{"test": "x"}')):
        (Path("words") / name).write_text(text)
    runs, short = {"warm": warm}, ("tiny", "--init", warm, "--prompts", 4, "--rollouts", 4, "--steps", 1)
    for name, arguments in {
        "rl": (*short, "--eval-every", 1, "--eval-prompts", 4),
        "several": (*short, "--passes", 2, "--beta", 0.1),
        "rewards": (*own, "--reward", "rewards.py:half", "--estimator", "rloo"),
        "images": ("glyphs", "--steps", 1, "--eval-every", 1),
        "verifier": (*short, "--task", "gsm8k", "--task.directory", "words", "--task.verdict", "published"),
    }.items():
        code, said = shell("train.py", *arguments, "--out", name)
        assert code == 0, said
        runs[name] = name
    written = {re.sub(r"@\d+$", "@k", key).replace("/half/", "/NAME/") for run in runs.values() for key in metrics(run)[0]}
    documented = set()
    for row in re.findall(r"^\| (`.*?) \|", README.split("\n## Metrics\n")[1].split("\n## ")[0], re.M):
        first = ""
        for name in re.findall(r"`([^`]+)`", row):
            documented.add(name if "/" in name else first + name)
            first = name.rpartition("/")[0] + "/" if "/" in name else first
    assert written - {"step"} == documented


OPTIONS = {f"--{dashed(name)}" for name in Config.__dataclass_fields__}
OTHERS = {"--samples", "--k", "--split", "--workers", "--gradient-norms", "--prompts", "--plot", "--source", "--size",
          "--help", "--out", "--dry-run", "--gpus", "--task", "--estimator"} | {
          f"--{name}" for name in ("nnodes", "nproc-per-node")} | {  # torchrun
          f"--{name}" for name in ("nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "signal", "requeue",
                                   "open-mode", "kill-on-bad-exit")}  # Slurm, fmt: skip


@pytest.mark.parametrize("code, queued", [(0, False), (2, False), (74, False), (75, True), (138, True), (143, True)])
def test_the_slurm_script(tmp_path, code, queued):
    """With an srun that starts two of the ranks: what they are told, what is run, and what follows from how it ends."""
    script = block("#!/bin/bash", "exit $code")
    said = tmp_path / "said"
    tools = {"scontrol": f'echo "scontrol $@" >> {said}; echo node7', "python": f'echo "$RANK $LOCAL_RANK $WORLD_SIZE '
             f'$MASTER_ADDR python $@" >> {said}; exit {code}', "srun": 'shift 2; export SLURM_NTASKS=32; SLURM_PROCID=8 '
             'SLURM_LOCALID=0 "$@"; SLURM_PROCID=9 SLURM_LOCALID=1 "$@"'}  # fmt: skip
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[7-10]", "SLURM_JOB_ID": "5"}
    result = subprocess.run(["bash", "-u"], input=script, text=True, env=environment, capture_output=True)
    assert result.returncode == code and result.stderr == ""
    train = "node7 python train.py polaris_qwen3_1_7b --resume auto --save-every-minutes 30"
    assert said.read_text().splitlines() == ["scontrol show hostnames node[7-10]", f"8 0 32 {train}", f"9 1 32 {train}"] + [
        "scontrol requeue 5"] * queued


def test_every_option_exists():
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README))
    assert named - OPTIONS - OTHERS == set()
    assert {"--minibatches", "--passes", "--clip", "--reward"} <= named


@pytest.mark.parametrize("name", sorted(set(re.findall(r"train\.py ([a-z]\w+)", README)) - {"RECIPE"}))
def test_every_recipe_exists(name):
    assert name in RECIPES


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?m)^    .*", "", README))  # code has brackets too
    titles = {re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in re.findall(r"^#+ (.*)", README, re.M)}
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://") or link[1:] in titles or (ROOT / link.partition("#")[0]).exists(), link


def test_every_estimator_exists():
    named = set(re.findall(r"--estimator ([a-z_]+)(?![\w.])", README))
    assert named and named <= set(ADVANTAGES)


def test_your_own_estimator():
    found = {}
    exec(compile(block("# mine.py", "    return torch.where"), "README.md", "exec"), found)
    rewards = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(found["root"](rewards, power=1), ADVANTAGES["maxrl"](rewards))
