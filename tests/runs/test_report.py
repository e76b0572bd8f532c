"""What the model writes, and the report on it: samples.jsonl holds what was sampled."""

import base64
import html
import json
import math
import re
import subprocess
import sys
import types
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from maxrl.analysis import report
from maxrl.learning.config import Config
from maxrl.run import samples
from maxrl.system.errors import UsageError
from maxrl.tasks.maze import ID, verify
from tests import ROOT
from tests.helpers import tiny
from tests.helpers.runs import metrics
from tests.helpers.tables import each, put, rows


def test_samples_are_what_was_sampled(recorded):
    """What a line says of the rewards is what its responses are."""
    lines = rows(recorded.path / "samples.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    seen = set()
    for line in lines:
        assert len(line["prompts"]) == 2
        for prompt in line["prompts"]:
            rewards = [response["reward"] for response in prompt["responses"]]
            mixed = 0 < prompt["right"] < line["rollouts"]
            assert rewards == ([1, 0] if mixed else [float(prompt["right"] > 0)])
            for response in prompt["responses"]:
                assert response["reward"] == verify(prompt["prompt"], response["response"])
                assert response["length"] == len(response["response"].split())
                assert response["read"] is None
                picture = response["drawn"].splitlines()
                assert picture[1].startswith("##S ")
                seen.add(picture[-1].split(":")[0])
                assert picture[-1].startswith("right: " if response["reward"] else "wrong: ")
    assert seen == {"right", "wrong"}


def test_when_samples_are_due():
    """By default at evaluations; supervised training samples nothing."""

    def due(**options):
        return [step for step in range(5) if Config(steps=5, **options).shows(step)]

    assert due(show_every=0, eval_every=0) == []
    assert due(eval_every=2) == [1, 3]
    assert due(eval_every=2, show_every=3) == [0, 1, 3]
    assert due(eval_every=2, estimator="supervised", rollouts=(1,)) == []


class Reads(tiny.Up):
    """Reads the first word, and fails over what does not begin with UP; its pictures fail."""

    def final(self, response):
        assert response.startswith("UP")
        return "UP"

    def show(self, response, example):
        raise OSError("no picture")


@pytest.fixture
def prompts(tmp_path):
    """prompts(rewards) -> what is written of four rollouts of each of four prompts."""
    task = Reads("train")
    rollouts = tiny.rollouts()
    rollouts.lengths[0] = 4
    rollouts.tokens[0, 0, 0] = ID["UP"]
    rollouts.tokens[0, 1, 0] = ID["LEFT"]
    run = types.SimpleNamespace(task=task, cfg=Config(show_every=1), main=True, path=tmp_path)

    def write(rewards):
        examples = [task[i] for i in range(4)]
        samples.write(run, 0, examples, rollouts, torch.tensor(rewards))
        return rows(tmp_path / "samples.jsonl")[-1]["prompts"]

    return write


NONE = math.nan


def test_what_the_verifier_reads(prompts):
    """Of a task whose code fails nothing is read or drawn, and the run goes on."""
    first, second = prompts([[1.0, 0, 1, 1], [NONE] * 4, [0, 0, 0, 0], [0.5, 0, -2, 0]])
    right, wrong = first["responses"]
    assert (right["reward"], right["read"], right["drawn"]) == (1, "UP", None)
    assert (wrong["reward"], wrong["read"], wrong["drawn"]) == (0, None, None)
    assert [response["reward"] for response in second["responses"]] == [0.5, -2]
    assert (first["right"], second["right"]) == (3, 0)


def test_a_rollout_without_a_verdict_is_neither_the_best_nor_the_worst(prompts):
    """A group without any is no failure."""
    first, second = prompts([[NONE, 1, 1, 1], [0.0] * 4, [NONE, 1, 0, NONE], [0.0] * 4])
    assert [response["reward"] for response in first["responses"]] == [1, 0]
    assert [response["reward"] for response in second["responses"]] == [1]
    first, _ = prompts([[NONE] * 4] * 4)
    assert first["responses"][0]["reward"] is None


# ---------------------------------------------- the report -------------------------------------
HOSTILE = (
    "</script></style></pre></title><script>alert(1)</script>"
    "<img src='http://x.y/z' onerror=\"f()\">&amp; $names ]]>"
)


class Page(HTMLParser):
    """.source, .text, and .tags: (name, attributes) of every element, each of which is closed."""

    def __init__(self, file):
        super().__init__()
        self.tags = []
        self.text = ""
        self.open = []
        self.source = Path(file).read_text()
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def table(self, caption):
        """Its rows, as lists of texts."""
        found = re.search(f"<caption>{caption}</caption>(.*?)</table>", self.source, re.S)
        return [
            list(map(html.unescape, re.findall("<t[hd].*?>(.*?)</t[hd]>", row, re.S)))
            for row in re.findall("<tr>(.*?)</tr>", found[1], re.S)
        ]


@pytest.fixture
def make(in_a_directory_of_its_own):
    """make(name, rows, steps, prompt, text, drawn, **options): a run directory of that name, with
    samples of these steps."""

    def run(name, values=({"reward": 0.5},), steps=(0, 4), prompt="2 + 2 =", text="4", **options):
        folder = Path(name)
        folder.mkdir(parents=True)
        drawn = options.pop("drawn", None)
        config = {"estimator": "maxrl", "steps": 9, "out": name} | options
        recipe = {"recipe": "mine", "command": f"python train.py mine --out {name}", "step": 1}
        (folder / "recipe.json").write_text(json.dumps(recipe | {"config": config}))
        put(folder / "metrics.jsonl", [{"step": i, **row} for i, row in enumerate(values)])
        right = {"reward": 1.0, "length": 3, "response": text, "read": text, "drawn": drawn}
        wrong = {"reward": 0.0, "length": 8, "response": "5", "read": None, "drawn": None}
        shown = {"prompt": prompt, "answer": "4", "right": 3, "responses": [right, wrong]}
        lines = [{"step": step, "rollouts": 8, "prompts": [shown]} for step in steps]
        put(folder / "samples.jsonl", lines)
        return name

    return run


def made(*words) -> Page:
    Path("page.html").unlink(missing_ok=True)
    report.main([*words, "--out", "page.html"])
    return Page("page.html")


def test_the_numbers_are_those_of_the_runs(make):
    """To six digits and not smoothed; the last value that there is."""
    long = [{"reward": i / 7, "seconds": i / 3} for i in range(40)]
    long[19]["eval/pass@16"] = 1 / 9
    short = [{"reward": i / 13, "seconds": 1e7 / 3} for i in range(12)]
    page = made(make("a", long), make("b", short, estimator="grpo"))
    assert page.table("The last value of each metric") == [
        ["", "a", "b"],
        ["step", "40", "12"],
        ["reward", "5.57143", "0.846154"],
        ["seconds", "13", "3.33333e+06"],
        ["eval/pass@16", "0.111111", "–"],
    ]
    assert ["estimator", "maxrl", "grpo"] in page.table("Options")


def test_long_runs_are_thinned(make):
    """At most 20 steps of samples, with the last."""
    page = made(make("long", steps=range(0, 1000, 10)))
    assert page.text.count("3 of 8 right") == 17
    assert "step 991" in page.text


def test_what_differs_is_listed(make):
    runs = [make("a", lr=1e-4, seed=1), make("b", lr=1e-3, seed=1), make("x/a", lr=1e-4, seed=1)]
    found = [row for row in made(*runs).table("Options") if row[0] not in ("command", "out")]
    assert found == [["", "a", "b", "x/a"], ["lr", "0.0001", "0.001", "0.0001"]]
    assert ["seed", "1"] in made("a").table("Options")


def test_hostile_text_is_text(make):
    """It makes no element wherever it stands; what cannot be printed is a dot."""
    odd = "\x00\x1b[31m\u202e\ud800"
    name = "$" + HOSTILE[:60].replace("/", "_") + "$"
    own = {HOSTILE: 5, "task_options": {HOSTILE: 1}, "estimator": HOSTILE}
    page = made(make(name, prompt=HOSTILE + odd, text=HOSTILE + "2", drawn=HOSTILE, **own))
    calm = {tag for tag, _ in made(make("calm", drawn="##..xx")).tags}
    assert {tag for tag, _ in page.tags} <= calm
    assert "script" not in calm
    names = {key for _, attributes in page.tags for key in attributes}
    assert not [key for key in names if key.startswith("on")]
    assert [tag for tag, about in page.tags if "src" in about] == ["img"]
    assert f"{HOSTILE}\u00b7\u00b7[31m\u00b7\u00b7" in page.text
    assert page.text.count(HOSTILE) >= 8
    assert "\x1b" not in page.source


def test_the_page_needs_nothing_else(make):
    """It has no address and a policy that forbids any; torch does not make it. The curves are a
    picture that stands in it."""
    make("a", [{"reward": 0.5, "kl": 0.25}])
    code = "import sys; sys.modules |= dict.fromkeys(['torch', 'tokenizers'])\n"
    code += "from maxrl.analysis import report; report.main(['a'])"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT)})
    page = Page("a/report.html")
    links = [about[key] for _, about in page.tags for key in ("href", "src") if key in about]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "http" not in page.source.replace("http-equiv", "")
    assert "url(" not in page.source
    policy = next(about["content"] for _, about in page.tags if "http-equiv" in about)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    (image,) = [about["src"] for tag, about in page.tags if tag == "img"]
    drawn = base64.b64decode(image.removeprefix("data:image/png;base64,"))
    assert drawn.startswith(b"\x89PNG")


def test_where_it_goes(make, capsys):
    """It lies in the run, or in the directory that has all of them, and can be made again."""
    make("x/a")
    make("x/b")
    report.main(["x/a"])
    report.main([str(Path("x/a").resolve()), "x/b"])
    here = Path.cwd()
    said = capsys.readouterr().out
    assert said == f"wrote {here}/x/a/report.html\nwrote {here}/x/report.html\n"
    put(Path("x/a/metrics.jsonl"), [{"step": 1, "reward": 0.75}])
    report.main(["x/a"])
    assert "0.75" in Page("x/a/report.html").text


# A file, what is in it, and what is said.
BAD = """
recipe.json | GONE | a is no run directory
recipe.json | { | a is no run directory
recipe.json | {"config": 3} | a is no run directory
metrics.jsonl | GONE | a is no run directory, or its first step
metrics.jsonl | | a is no run directory, or its first step
report.html | <!doctype html> mine | report.html exists
"""


@each("file, content, words", BAD)
def test_bad_input_is_one_sentence(make, file, content, words):
    make("a")
    path = Path("a", file)
    path.unlink(missing_ok=True)
    if content != "GONE":
        path.write_text(content)
    before = [file.read_bytes() for file in Path("a").iterdir()]
    with pytest.raises(UsageError, match=words):
        report.main(["a"])
    assert [file.read_bytes() for file in Path("a").iterdir()] == before


def test_the_report_of_a_run(recorded, in_a_directory_of_its_own):
    """It shows the run's mazes as they are drawn, and its numbers."""
    page = made(str(recorded.path))
    for line in rows(recorded.path / "samples.jsonl"):
        for prompt in line["prompts"]:
            for response in prompt["responses"]:
                assert response["drawn"] in page.text
                assert response["response"] in page.text
    last = metrics(recorded.path)[3]["eval/pass@4"]
    assert ["eval/pass@4", f"{last:.6g}"] in page.table("The last value of each metric")
