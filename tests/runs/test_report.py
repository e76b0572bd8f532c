"""What the model writes, and the report on it: samples.jsonl holds what was sampled, and changes
nothing."""

import base64
import json
import math
import subprocess
import sys
import types
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from conftest import ROOT
from runs import SHORT, metrics, timeless, weights

from maxrl import report
from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.run import samples as written
from maxrl.run.directory import Run
from maxrl.tasks.maze import ID, verify

EVALUATED = ("--eval-every", 2, "--eval-prompts", 4)


def samples(run) -> list[dict]:
    return [json.loads(line) for line in (Path(run) / "samples.jsonl").read_text().splitlines()]


def test_samples_are_what_was_sampled_and_change_nothing(dice, shell):
    """Of every step, and of none: the same weights and metrics. What a line says of the rewards is
    what the metrics say."""
    run = (*SHORT, "--init", dice, "--task", "tiny:Up", "--save-every", 2)
    assert shell("train.py", *run, "--out", "without")[0] == 0
    assert not Path("without/samples.jsonl").exists()
    code, said = shell("train.py", *run, "--show-every", 1, "--out", "with")
    assert code == 0, said
    assert timeless("with") == timeless("without") and weights("with") == weights("without")
    lines = samples("with")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    for line in lines:
        N = line["rollouts"]
        assert len(line["prompts"]) == 2
        for prompt in line["prompts"]:
            assert prompt["prompt"].startswith("<bos> UP LEFT")
            rewards = [response["reward"] for response in prompt["responses"]]
            assert rewards == ([1, 0] if 0 < prompt["right"] < N else [float(prompt["right"] == N)])
            for response in prompt["responses"]:
                assert response["reward"] == response["response"].startswith("UP")
                assert len(response["response"].split()) == response["length"]
                assert response["read"] is response["drawn"] is None


def test_when_samples_are_due(warm, shell):
    run = (*SHORT, "--init", warm, *EVALUATED)
    assert shell("train.py", *run, "--out", "evaluated")[0] == 0
    assert [line["step"] for line in samples("evaluated")] == [1, 3]
    assert shell("train.py", *run, "--show-every", 3, "--out", "both")[0] == 0
    assert [line["step"] for line in samples("both")] == [0, 1, 3]
    drawn = [
        response
        for line in samples("both")
        for prompt in line["prompts"]
        for response in prompt["responses"]
    ]
    for response in drawn:
        assert response["drawn"].startswith("##############\n##S ")
        assert (
            response["drawn"]
            .splitlines()[-1]
            .startswith("right: " if response["reward"] else "wrong: ")
        )
    prompt = samples("both")[0]["prompts"][0]
    rewards = [verify(prompt["prompt"], r["response"]) for r in prompt["responses"]]
    assert rewards == [response["reward"] for response in prompt["responses"]]
    few = "--steps 2 --eval-every 1 --eval-prompts 4 --eval-samples 4 --eval-k 1"
    code, said = shell("train.py", "tiny_sft", *few.split(), "--out", "sft")
    assert code == 0 and not Path("sft/samples.jsonl").exists(), said


@pytest.mark.parametrize("at", [1, 4])
def test_a_resumed_run_has_every_line_once(warm, shell, monkeypatch, at):
    """Killed between a line and the checkpoint after it, and with half a line at the end: byte for
    byte the whole run's."""
    run = (*SHORT, "--init", warm, "--save-every", 2, "--show-every", 1)
    assert shell("train.py", *run, "--out", "whole")[0] == 0
    ends = Run.ends

    def killed(self, step, *arguments):
        if step == at - 1:
            raise tiny.Killed
        return ends(self, step, *arguments)

    with monkeypatch.context() as patch, pytest.raises(tiny.Killed):
        patch.setattr(Run, "ends", killed)
        shell("train.py", *run, "--out", "cut")
    assert len(samples("cut")) == at
    with open("cut/samples.jsonl", "a") as file:
        file.write('{"step": 7, "roll')
    code, said = shell("train.py", *run, "--out", "cut", "--resume", "auto")
    assert code == 0, said
    assert Path("cut/samples.jsonl").read_bytes() == Path("whole/samples.jsonl").read_bytes()


class Reads(tiny.Up):
    """Reads the first word, and fails over what does not begin with UP; its pictures fail for
    all."""

    def final(self, response):
        assert response.startswith("UP")
        return "UP"

    def show(self, response, example):
        raise OSError("no picture")


def test_what_the_verifier_reads(tmp_path):
    """Of a task whose code fails nothing is read or drawn, and the run goes on. A group without a
    verdict is no failure."""
    task = Reads("train")
    rollouts = tiny.rollouts()
    rollouts.lengths[0] = 4
    rollouts.tokens[0, 0, 0] = ID["UP"]
    rollouts.tokens[0, 1, 0] = ID["LEFT"]
    rewards = torch.tensor([[1.0, 0, 1, 1], [math.nan] * 4, [0, 0, 0, 0], [0.5, 0, -2, 0]])
    run = types.SimpleNamespace(task=task, cfg=Config(show_every=1), main=True, path=tmp_path)
    written.write(run, 4, [task[i] for i in range(4)], rollouts, rewards)
    (line,) = samples(run.path)
    assert line["step"] == 4 and line["rollouts"] == 4
    first, second = line["prompts"]
    assert [(r["reward"], r["read"], r["drawn"]) for r in first["responses"]] == [
        (1, "UP", None),
        (0, None, None),
    ]
    assert [r["reward"] for r in second["responses"]] == [0.5, -2] and (
        first["right"],
        second["right"],
    ) == (3, 0)
    written.write(run, 5, [task[0]] * 4, rollouts, torch.full((4, 4), math.nan))
    assert samples(run.path)[1]["prompts"][0]["responses"][0]["reward"] is None


def test_a_rollout_without_a_verdict_is_neither_the_best_nor_the_worst(tmp_path):
    """`--no-verdict rollout` leaves such a rollout out; the prompt still has a right and a wrong
    one to show."""
    task = tiny.Up("train")
    rewards = torch.tensor(
        [[math.nan, 1, 1, 1], [0, 0, math.nan, 0], [math.nan, 1, 0, math.nan], [0, 0, 0, 0]]
    )
    run = types.SimpleNamespace(task=task, cfg=Config(show_every=1), main=True, path=tmp_path)
    written.write(run, 0, [task[i] for i in range(4)], tiny.rollouts(), rewards)
    first, second = samples(run.path)[0]["prompts"]
    assert [r["reward"] for r in first["responses"]] == [1, 0] and [
        r["reward"] for r in second["responses"]
    ] == [1]


# --------------------------------------------------------- the report
# -----------------------------------------------
HOSTILE = (
    "</script></style></pre></title><script>alert(1)</script>"
    "<img src='http://x.y/z' onerror=\"f()\">&amp; $names ]]>"
)


class Page(HTMLParser):
    """.tables {caption: rows of cells}, .text, and .tags: (name, attributes) of every element, each
    of which is closed."""

    def __init__(self, file):
        super().__init__()
        self.tables, self.tags, self.text, self.open, self.cells = {}, [], "", [], None
        self.source = Path(file).read_text()
        self.feed(self.source)
        self.close()
        assert self.open == ["html"] or not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        if tag == "table":
            self.rows = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th", "caption"):
            self.cell = ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "caption":
            self.tables[self.cell] = self.rows
        if tag in ("td", "th"):
            self.rows[-1].append(self.cell)

    def handle_data(self, data):
        self.text += data
        self.cell = getattr(self, "cell", "") + data


@pytest.fixture
def make(tmp_path, monkeypatch):
    """make(name, rows, **recipe): a run directory of that name, with samples of its steps 0 and
    4."""
    monkeypatch.chdir(tmp_path)

    def run(
        name,
        rows=({"reward": 0.5},),
        lines=(0, 4),
        prompt="2 + 2 =",
        text="4",
        drawn=None,
        **config,
    ):
        folder = Path(name)
        folder.mkdir(parents=True)
        about = {"recipe": "mine", "command": f"python train.py mine --out {name}", "step": 1}
        options = {"estimator": "maxrl", "steps": 9, "out": name} | config
        (folder / "recipe.json").write_text(json.dumps(about | {"config": options}))
        rows = [{"step": step, **row} for step, row in enumerate(rows)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        right = {"reward": 1.0, "length": 3, "response": text, "read": text, "drawn": drawn}
        wrong = {"reward": 0.0, "length": 8, "response": "5", "read": None, "drawn": None}
        prompts = [{"prompt": prompt, "answer": "4", "right": 3, "responses": [right, wrong]}]
        line = {"rollouts": 8, "prompts": prompts}
        (folder / "samples.jsonl").write_text(
            "".join(json.dumps({"step": step, **line}) + "\n" for step in lines)
        )
        return name

    return run


def made(*words) -> Page:
    Path("page.html").unlink(missing_ok=True)
    report.main([*words, "--out", "page.html"])
    return Page("page.html")


def test_the_numbers_are_those_of_the_runs(make):
    """Tables have the numbers of the files, to six digits and not smoothed."""
    rng = np.random.default_rng(0)
    keys = ("reward", "entropy", "seconds", "tokens_per_second", "memory/peak_gb")
    runs = {
        name: [dict(zip(keys, rng.random(len(keys)))) for _ in range(steps)]
        for name, steps in (("a", 40), ("b", 12))
    }
    for row in (runs["a"][19], runs["a"][39], runs["b"][9]):
        row |= {f"eval/pass@{k}": rng.random() for k in (1, 16, 4)}
    page = made(make("a", runs["a"]), make("b", runs["b"], estimator="grpo"))
    head, *rows = page.tables["The last value of each metric"]
    assert head == ["", "a", "b"]
    cells = {key: values for key, *values in rows}
    for key in keys:
        assert cells[key] == [f"{run[-1][key]:.6g}" for run in runs.values()]
    for key in ("eval/pass@1", "eval/pass@4", "eval/pass@16"):
        assert cells[key] == [f"{row[key]:.6g}" for row in (runs["a"][39], runs["b"][9])]
    rows = dict((key, cells) for key, *cells in page.tables["Directories and recipes"])
    assert rows["steps"] == ["40 of 9", "12 of 9"] and rows["estimator"] == ["maxrl", "grpo"]


def test_the_curves_stand_in_the_page(make):
    """As one picture, of the metrics that a run has."""
    make("a", [{"reward": 0.5, "kl": 0.25}])
    (image,) = [about for tag, about in made("a").tags if tag == "img"]
    drawn = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
    assert drawn.startswith(b"\x89PNG")


def test_long_runs_are_thinned(make):
    """At most 20 steps of samples, with the last."""
    page = made(make("long", lines=range(0, 1000, 10)))
    assert page.text.count("3 of 8 right") == 17 and "step 991: " in page.text


def test_what_differs_is_listed(make):
    runs = make("a", lr=1e-4, seed=1), make("b", lr=1e-3, seed=1), make("x/a", lr=1e-4, seed=1)
    assert made(*runs).tables["Options"] == [
        ["", "a (a)", "b", "a (x/a)"],
        ["lr", "0.0001", "0.001", "0.0001"],
    ]
    assert ["seed", "1"] in made("a").tables["Options"]


def test_hostile_text_is_text(make):
    """It makes no element wherever it stands; what cannot be printed is a dot."""
    odd = "\x00\x1b[31m\u202e\ud800"
    name = "$" + HOSTILE[:60].replace("/", "_") + "$"
    own = {HOSTILE: 5, "task_options": {HOSTILE: 1}, "estimator": HOSTILE}
    run = make(name, prompt=HOSTILE + odd, text=HOSTILE + "2", drawn=HOSTILE, **own)
    page = made(run)
    calm = {tag for tag, _ in made(make("calm", drawn="##..xx")).tags}
    assert {tag for tag, _ in page.tags} <= calm and "script" not in calm
    names = {key for _, attributes in page.tags for key in attributes}
    assert not {key for key in names if key.startswith("on")}
    assert [tag for tag, about in page.tags if "src" in about] == ["img"]
    assert f"{HOSTILE}\u00b7\u00b7[31m\u00b7\u00b7" in page.text and page.text.count(HOSTILE) >= 8
    assert page.source.count("<script") == 0 == page.source.count("\x1b")


def test_the_page_needs_nothing_else(make):
    """It has no address and a policy that forbids any; torch does not make it."""
    make("a")
    code = "import sys; sys.modules |= dict.fromkeys(['torch', 'tokenizers'])\n"
    code += "from maxrl import report; report.main(['a'])"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT)})
    page = Page("a/report.html")
    links = [about[key] for _, about in page.tags for key in ("href", "src") if key in about]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert "http" not in page.source.replace("http-equiv", "") and "url(" not in page.source
    policy = next(about["content"] for _, about in page.tags if "http-equiv" in about)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_where_it_goes(make, capsys):
    """It lies in the run, or in the directory that has all of them, and can be made again."""
    make("x/a"), make("x/b")
    report.main(["x/a"])
    report.main([str(Path("x/a").resolve()), "x/b"])
    here = Path.cwd()
    said = capsys.readouterr().out
    assert said == f"wrote {here}/x/a/report.html\nwrote {here}/x/report.html\n"
    with open("x/a/metrics.jsonl", "a") as file:
        file.write('{"step": 1, "reward": 0.75}\n')
    report.main(["x/a"])
    assert "0.75" in Page("x/a/report.html").text


@pytest.mark.parametrize(
    "break_it, words",
    [
        (lambda: Path("a/recipe.json").unlink(), "a is no run directory"),
        (lambda: Path("a/recipe.json").write_text("{"), "a is no run directory"),
        (lambda: Path("a/recipe.json").write_text('{"config": 3}'), "a is no run directory"),
        (lambda: Path("a/metrics.jsonl").unlink(), "a is no run directory, or its first step"),
        (lambda: Path("a/report.html").write_text("<!doctype html> mine"), "report.html exists"),
    ],
)
def test_bad_input_is_one_sentence(make, break_it, words):
    make("a")
    break_it()
    before = [file.read_bytes() for file in Path("a").iterdir()]
    with pytest.raises(UsageError, match=words):
        report.main(["a"])
    assert [file.read_bytes() for file in Path("a").iterdir()] == before


def test_damaged_rows_are_left_out(make):
    """With a warning, as a line is that is no JSON."""
    make("a")
    prompt = json.loads(Path("a/samples.jsonl").read_text().splitlines()[0])["prompts"][0]
    odd = [3, None, [3], [{}], [prompt | {"responses": [{}]}], [prompt | {"responses": 3}]]
    with open("a/samples.jsonl", "a") as file:
        for prompts in odd:
            file.write(json.dumps({"step": 7, "rollouts": 8, "prompts": prompts}) + "\n")
        file.write('{"step": 8}\n')
    with pytest.warns(UserWarning, match="step [89], cannot be read") as warned:
        page = made("a")
    assert len(warned) == len(odd) + 1
    assert "step 1: 3 of 8 right" in page.text and "step 8" not in page.text


def test_the_report_of_a_run(warm, shell):
    """The command with which a run ends shows its mazes as they are drawn, and its numbers."""
    code, said = shell("train.py", *SHORT, "--init", warm, *EVALUATED, "--out", "run")
    assert code == 0 and "python -m maxrl.report run" in said, said
    report.main(["run"])
    page = Page("run/report.html")
    for line in samples("run"):
        for prompt in line["prompts"]:
            for response in prompt["responses"]:
                assert response["drawn"] in page.text and response["response"] in page.text
    last = [row for row in metrics("run") if "eval/pass@4" in row][-1]
    shown = page.tables["The last value of each metric"]
    assert ["eval/pass@4", f"{last['eval/pass@4']:.6g}"] in shown
