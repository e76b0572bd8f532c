"""What the READMEs print runs as printed: Python, commands, options, recipes and links."""

import json
import os
import re
import runpy
import shlex
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from runs import metrics, weights

from maxrl import checkpoint
from maxrl.advantages import ADVANTAGES, weight
from maxrl.io.user_code import imported
from maxrl.models.hf_config import FAMILIES
from maxrl.models.resnet import MODEL_TYPE
from maxrl.models.rope import TYPES

FRONT = (
    "README.md",
    "maxrl/README.md",
    "maxrl/run/README.md",
    "maxrl/run/coming_from_trl.md",
    "maxrl/run/other_trainers.md",
    "maxrl/run/large_runs.md",
    "maxrl/run/troubleshooting.md",
    "data/README.md",
    "tests/README.md",
    "results/README.md",
)
PAGES = {name: (ROOT / name).read_text() for name in FRONT if (ROOT / name).exists()}
STUDIES = {
    file.relative_to(ROOT).as_posix(): file.read_text()
    for file in sorted(ROOT.glob("results/*/README.md"))
}
README = PAGES["README.md"]
ALL = "\n".join(PAGES.values())


def block(first: str, last: str) -> str:
    """The indented lines of a README from the one that begins with `first` to the one that begins
    with `last`."""
    found = re.search(rf"^    {re.escape(first)}.*?^    {re.escape(last)}.*?$", ALL, re.M | re.S)
    return textwrap.dedent(found.group(0))


def commands(start: str) -> list[list[str]]:
    """The commands of the READMEs that begin so, in code blocks (without comments) or between
    backticks, as words."""
    text = re.sub(r"\\\n\s+", "", ALL)
    inline = re.sub(r"(?m)^    .*$", "", text).replace("\n", " ")
    lines = re.findall(r"(?m)^    +(.*)$", text) + re.findall(r"`([^`]+)`", inline)
    found = [line[line.index(start) :].partition(" # ")[0] for line in lines if start in line]
    return [shlex.split(line.partition(";")[0]) for line in found]


def test_python_in_ten_lines(own, warm, capsys):  # noqa: F811
    """Word for word, with a checkpoint called MODEL and a file of two rows; the learning rate alone
    is raised, to see that it learns something."""
    code = block("import torch", "checkpoint.save")
    assert len([line for line in code.splitlines() if line.startswith("    ")]) < 10, "the loop"
    Path("MODEL").symlink_to(warm)
    Path("mine.jsonl").write_text(
        "".join(Path("mine.jsonl").read_text().splitlines(keepends=True)[:2])
    )
    exec(compile(code.replace("1e-6", "1e-3"), "README.md", "exec"), {})
    assert re.fullmatch(
        r"step 0: reward \d\.\d{3}\nstep 1: reward \d\.\d{3}\n", capsys.readouterr().out
    )
    assert Path("trained/model.safetensors").read_bytes() != weights("MODEL")


def test_your_own_task(own, warm, shell):  # noqa: F811
    code = block("# sums.py", "        return float(")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    Path("sums.py").write_text(code)
    task = "--task sums.py:Sums --task.largest 50 --max-response 10 --max-prompt 0"
    few = "--prompts 4 --rollouts 4 --steps 1 --out run"
    said = shell("train.py", "prompts", *task.split(), *few.split(), "--init", warm)
    assert said[0] == 0 and len(metrics("run")) == 1, said[1]


def test_a_model_from_scratch(shell, in_a_directory_of_its_own):
    """Both commands as printed, but for a few steps: the task's words become the model's."""
    Path("digits.py").write_text(block("# digits.py", "    return replace("))
    words = block("python train.py digits.py:", "python train.py prompts").splitlines()
    few = ["--steps 3", "--steps 2"]
    for command, steps, run in zip(words, few, ["runs/digits_sft", "runs/prompts-maxrl"]):
        code, said = shell(*shlex.split(f"{command} {steps}")[1:])
        assert code == 0 and len(metrics(run)) == int(steps.split()[1]), said
        assert checkpoint.load_tokenizer(run).encode("<bos> 0 9") == [1, 4, 13]


def test_the_models_are_those_of_the_code():
    """The table of models and the kinds of rotary positions are the registries', in their order."""
    section = PAGES["maxrl/README.md"].split("\n## Models\n")[1].split("\n## ")[0]
    assert re.findall(r"(?m)^\| `(\w+)` \|", section)[1:] == [*FAMILIES, MODEL_TYPE]
    rotary = re.search(r"Rotary positions are (.*)\.\s", section)[1]
    assert re.findall(r"`(\w+)`", rotary) == list(TYPES)


GSM8K = "--task gsm8k --task.directory words --task.verdict published"


def test_every_metric_is_defined(own, recipe, warm, shell, monkeypatch):  # noqa: F811
    """What runs of every kind write is what the table has, no more and no less. In a row of it the
    names after one with a slash share its first part."""
    pytest.importorskip("math_verify")
    counts = {"rewards/verifier_timeouts": 2.0, "rewards/verifier_deaths": 1.0}
    monkeypatch.setattr("maxrl.rewards.functions.take_counts", lambda: dict(counts))
    Path("words").mkdir()
    for name, text in (
        ("train.jsonl", '{"problem": "UP", "answer": "5"}\n' * 4),
        ("info.json", '{"test": "x"}'),
    ):
        (Path("words") / name).write_text(text)
    runs, short = (
        {"warm": warm},
        ("tiny", "--init", warm, "--prompts", 4, "--rollouts", 4, "--steps", 1),
    )
    for name, arguments in {
        "rl": (*short, "--eval-every", 1, "--eval-prompts", 4),
        "several": (*short, "--passes", 2, "--beta", 0.1),
        "rewards": (
            *own,
            "--reward",
            "rewards.py:half,rewards.py:correct",
            "--estimator",
            "rloo",
            "--eval-every",
            1,
            "--eval-k",
            1,
            "--eval-samples",
            1,
        ),
        "images": ("glyphs", "--steps", 1, "--eval-every", 1),
        "verifier": (*short, *GSM8K.split()),
    }.items():
        code, said = shell("train.py", *arguments, "--out", name)
        assert code == 0, said
        runs[name] = name
    names = {key for run in runs.values() for key in metrics(run)[0]}
    written = {re.sub(r"/(half|correct)/", "/NAME/", re.sub(r"@\d+$", "@k", key)) for key in names}
    documented = set()
    for row in re.findall(r"^\| (`.*?) \|", ALL.split("\n## Metrics\n")[1].split("\n## ")[0], re.M):
        first = ""
        for name in re.findall(r"`([^`]+)`", row):
            documented.add(name if "/" in name else first + name)
            first = name.rpartition("/")[0] + "/" if "/" in name else first
    assert written - {"step"} == documented


@pytest.mark.parametrize(
    "code, queued",
    [(0, False), (2, False), (74, False), (75, True), (138, True), (143, True), (137, False)],
)
def test_the_slurm_script(tmp_path, code, queued):
    """With an srun that starts two of the ranks: what they are told, what is run, and what follows
    from how it ends."""
    script = (ROOT / "maxrl/run/slurm.sh").read_text()
    assert script == block("#!/bin/bash", "exit $code") + "\n"
    said = tmp_path / "said"
    told = "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $MASTER_ADDR"
    tools = {
        "scontrol": f'echo "scontrol $@" >> {said}; echo node7',
        "python": f'echo "{told} python $@" >> {said}; exit {code}',
        "srun": "shift 2; export SLURM_NTASKS=32 SLURM_NTASKS_PER_NODE=8; "
        'SLURM_PROCID=8 SLURM_LOCALID=0 "$@"; SLURM_PROCID=9 SLURM_LOCALID=1 "$@"',
    }
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "node[7-10]",
        "SLURM_JOB_ID": "5",
    }
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    result = subprocess.run(
        ["bash", "-u"], input=script, text=True, env=environment, capture_output=True, cwd=tmp_path
    )
    assert result.returncode == code and result.stderr == ""
    train = "node7 python train.py polaris_qwen3_1_7b --resume auto --save-every-minutes 30"
    assert (
        said.read_text().splitlines()
        == ["scontrol show hostnames node[7-10]", f"8 0 8 32 {train}", f"9 1 8 32 {train}"]
        + ["scontrol requeue 5"] * queued
    )


def test_every_module_and_file_exists():
    text = "\n".join([ALL, *STUDIES.values()])
    for module in set(re.findall(r"python -m ((?:maxrl|data)\.[\w.]+)", text)) - {
        "data.NAME.prepare"
    }:
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
    for file in set(re.findall(r"`((?:maxrl|data|tests|results)/[\w/.]+\.\w+)`", text)):
        assert (ROOT / file).exists(), file


def test_every_link_leads_somewhere():
    pages = PAGES | STUDIES
    links = []
    for name, page in pages.items():
        text = re.sub(r"(?m)^    .*", "", page)  # code has brackets too
        found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?m)^\[\w+\]: (\S+)", text)
        assert set(re.findall(r"\]\[(\w+)\]", text)) == set(
            re.findall(r"(?m)^\[(\w+)\]: ", text)
        ), name
        links += [(name, link) for link in found if not link.startswith("https://")]
    assert len(links) > 40
    for name, link in links:
        file, _, title = link.partition("#")
        target = (ROOT / name).parent / file if file else ROOT / name
        assert target.exists(), (name, link)
        titles = re.findall(r"(?m)^#+ (.*)", target.read_text()) if title else []
        assert not title or title in {
            re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in titles
        }, (name, link)


def test_every_estimator_exists():
    named = set(re.findall(r"--estimator ([a-z_]+)(?![\w.])", ALL))
    assert named and named <= set(ADVANTAGES)
    table = ALL.split("\n## Estimators\n")[1].split("\n## ")[0]
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", table)) == set(ADVANTAGES)


def test_your_own_estimator():
    found = {}
    exec(compile(block("# mine.py", "    return torch.where"), "README.md", "exec"), found)
    rewards = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(found["root"](rewards, power=1), ADVANTAGES["maxrl"](rewards))


def test_what_your_own_estimator_weighs(tmp_path, monkeypatch, capsys):
    """The commands as printed, the simulation with fewer steps."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        ADVANTAGES, "mine.py:root", None
    )  # so that what is registered is taken back
    del ADVANTAGES["mine.py:root"]
    Path("mine.py").write_text(block("# mine.py", "    return torch.where"))
    code = block("from maxrl.advantages import weight", "print(weight")
    exec(compile(code, "README.md", "exec"), {})
    expected = weight("mine.py:root", 0.01, rollouts=16, power=0.25)
    assert float(capsys.readouterr().out) == pytest.approx(expected)
    for start, few in (
        ("python -m maxrl.plots --weights", []),
        ("python -m maxrl.toy --estimator", ["--steps", "2"]),
    ):
        (words,) = commands(start)
        monkeypatch.setattr("sys.argv", [*words[2:], *few])
        runpy.run_module(words[2], run_name="__main__")
    assert "mine.py:root  " in capsys.readouterr().out
    assert {"weights.png", "toy"} <= set(os.listdir())


def test_your_own_data(warm, shell, monkeypatch):
    """The lines of mine.jsonl, rewards.py and the commands, with a checkpoint in place of the small
    model; two steps."""
    rows = [json.loads(row) for row in re.findall(r'(?m)^    (\{"prompt".*\})$', README)]
    assert len(rows) == 2
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rewards.py").write_text(block("from maxrl.verifiers", "    return [verify_number"))
    function = imported("rewards.py:correct", "--reward")
    assert function([r"3+4=7 eggs.\n\boxed{7}", r"\boxed{7}"], [row["answer"] for row in rows]) == [
        1,
        0,
    ]
    Path("runs").mkdir()
    Path("runs/gsm8k_laptop_sft").symlink_to(warm)
    command = next(words for words in commands("train.py prompts") if "rewards.py:correct" in words)
    command[command.index("--steps") + 1] = 2
    said = shell(*command)
    assert said[0] == 0 and [row["reward"] for row in metrics("runs/prompts-maxrl")] == [0, 0], (
        said[1]
    )
    (words,) = commands("python -m maxrl.report runs/prompts-maxrl")
    monkeypatch.setattr("sys.argv", words[2:])
    runpy.run_module(words[2], run_name="__main__")
    assert "rewards.py:correct" in Path("runs/prompts-maxrl/report.html").read_text()
    # The run's last lines say how to look at it, and these commands run as they stand there.
    for script in ("sample", "eval"):
        (words,) = re.findall(rf"(?m)^  \w+ +python.* {script}(?:\.py)? (.*)$", said[1])
        code, shown = shell(f"{script}.py", *shlex.split(words), "--samples", 4)
        assert code == 0, shown
        assert script == "sample" or "prompts-maxrl minus each" in shown, shown


def test_two_tasks_in_one_run(warm, shell):
    """Each function judges its own prompts, and its mean is over them alone."""
    Path("MODEL").symlink_to(warm)
    Path("mixed.py").write_text(
        block("def sums", '    return [float(c.strip() == a) if k == "text"')
    )
    rows = re.findall(r'(?m)^    (\{"prompt".*"kind".*\})$', ALL)
    Path("mixed.jsonl").write_text("".join(f"{row}\n" for row in rows).replace("cba", ""))
    command = next(
        words
        for words in commands("train.py prompts")
        if "mixed.py:sums,mixed.py:backwards" in words
    )
    said = shell(
        *command, "--prompts", 2, "--rollouts", 8, "--steps", 1, "--max-response", 1, "--out", "run"
    )
    assert len(rows) == 2 and said[0] == 0, said[1]
    row = metrics("run")[0]
    parts = [row[f"rewards/{name}/mean"] for name in ("sums", "backwards")]
    assert row["reward"] == pytest.approx(sum(parts) / 2) and row["rewards/groups_left_out"] == 0
    assert row["rewards/disagreement/mean"] is None  # no prompt is of both kinds


def test_the_map_has_every_file():
    """The map names every file once, by a sentence, and the reading path is nine of them."""
    page = PAGES["maxrl/README.md"]
    plan = textwrap.dedent(page.split("\n## The map\n")[1].split("\n## ")[0].split("\n\n")[1])
    named, folder = [], ""
    for line in plan.splitlines():
        path, sentence = line.split(maxsplit=1) if " " in line.strip() else (line, "")
        if path.endswith("/"):
            folder = path
            continue
        assert sentence.endswith("."), line
        named.append(f"{folder}{path}" if line.startswith(" ") else path)
    files = [ROOT / name for name in ("train.py", "eval.py", "sample.py")] + list(
        ROOT.glob("maxrl/**/*.py")
    )
    files = [f.relative_to(ROOT).as_posix() for f in files if f.name != "__init__.py"]
    assert sorted(named) == sorted(files)
    read = re.findall(r"(?m)^(\d)\. `([\w/.]+)`: ", page)
    assert [int(place) for place, _ in read] == list(range(1, 10))
    assert {file for _, file in read} <= set(files)


def test_the_numbers_stand_in_the_results():
    """A result that the table of experiments links to a page stands on that page."""
    pages = dict(re.findall(r"(?m)^\[(\w+)\]: (\S+)", README))
    table = README.split("\n## Experiments\n")[1]
    cells = re.findall(r"(?m)\[([^]\n]+)\]\[(\w+)\]", table)
    assert len(cells) == len(pages) == 4
    for said, page in cells:
        numbers = re.findall(r"\.\d+", said)
        text = (ROOT / pages[page]).read_text()
        assert numbers and all(number in text for number in numbers), said
