"""The house: imports point one way, files and functions stay small, extras are imported where they are used."""

import ast
import functools
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from conftest import ROOT

FRONT = ("train", "eval", "sample")
# Three rings and a study: what a file may import of maxrl. Nobody imports a script.
RULES = {"io": {"io", "errors"}, "method": {"method", "io"}, "study": {"method", "io", "study"},
         "run": {"method", "io", "run"}}  # fmt: skip
ENTRIES = {
    "maxrl/plots.py",
    "maxrl/report.py",
    "maxrl/toy.py",
    "maxrl/grid.py",
}  # `python -m` names of files elsewhere
BARE = {
    "advantages",
    "estimator",
    "losses",
    "metrics",
    "models",
    "toy",
}  # may be lifted out: torch or numpy alone


@functools.cache
def sources():
    """{path within the project: parsed file}, tests left out."""
    files = [ROOT / f"{name}.py" for name in FRONT] + [
        *ROOT.glob("maxrl/**/*.py"),
        *ROOT.glob("data/**/*.py"),
    ]
    return {f.relative_to(ROOT): ast.parse(f.read_text()) for f in sorted(files)}


def part(path: Path) -> str:
    """maxrl/tasks/maze.py is "tasks", maxrl/policy.py "policy", train.py "train", data/maze/prepare.py "data"."""
    return path.with_suffix("").parts[1 if path.parts[0] == "maxrl" else 0]


def imported(tree) -> set[str]:
    """Every module imported anywhere in a file, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {
                f"{node.module}.{alias.name}" if node.module == "maxrl" else node.module
                for alias in node.names
            }
    return found


def ring(part: str) -> str:
    return part if part in RULES else "method"


def test_imports_point_one_way():
    for path, tree in sources().items():
        modules = imported(tree)
        assert not {m.split(".")[0] for m in modules} & {*FRONT, "tests"}, (
            f"{path}: nobody imports a script or a test"
        )
        if path.parts[0] == "maxrl" and path.as_posix() not in ENTRIES:
            inner = {m.split(".")[1] for m in modules if m.startswith("maxrl.")}
            allowed = RULES[ring(part(path))]
            wrong = {name for name in inner if name not in allowed and ring(name) not in allowed}
            assert not wrong, f"{path} imports {wrong}: see the rings in maxrl/__init__.py"
        if path.parts[0] == "data":
            assert not {m for m in modules if m.startswith(("maxrl.run", "maxrl.study"))}, path


def test_what_may_be_lifted_out_needs_nothing_else():
    third_party = {"torch", "numpy", "matplotlib"}
    for path, tree in sources().items():
        if path.parts[0] == "maxrl" and part(path) in BARE:
            outside = (
                {m.split(".")[0] for m in imported(tree)} - set(sys.stdlib_module_names) - {"maxrl"}
            )
            assert outside <= third_party, path


def test_extras_are_imported_where_they_are_used():
    """A bare installation has torch, safetensors, tokenizers, numpy and tqdm: everything else inside a function."""
    needed = {"torch", "safetensors", "tokenizers", "numpy", "tqdm", "maxrl", "data"} | set(
        sys.stdlib_module_names
    )
    for path, tree in sources().items():
        top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
        assert {m.split(".")[0] for m in imported(top)} <= needed, path


CODE = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "os.system",
    "os.popen",
    "yaml.load",
    "np.load",
    "numpy.load",
}
# The reward functions and tasks that the user names are the user's own programs: these import them, nothing else does.
IMPORTERS = {"import_module": {"maxrl/io/user_code.py"}, "exec_module": {"maxrl/io/user_code.py"}}


def test_no_file_is_run():
    """Checkpoints and data sets are data: no pickle, no eval, no shell, nobody's remote code."""
    unsafe = {
        "pickle",
        "cPickle",
        "dill",
        "joblib",
        "marshal",
        "shelve",
        "yaml",
        "cloudpickle",
        "runpy",
    }
    for path, tree in sources().items():
        assert not {m.split(".")[0] for m in imported(tree)} & unsafe, path
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name, given = (
                ast.unparse(call.func),
                {k.arg: ast.unparse(k.value) for k in call.keywords},
            )
            where = f"{path}, line {call.lineno}: {name}"
            assert name not in CODE or name == "np.load" and given.get("allow_pickle") == "False", (
                where
            )
            assert (
                not {"trust_remote_code", "shell"} & given.keys()
                and given.get("weights_only") is None
            ), where
            for importer, places in IMPORTERS.items():
                assert name.split(".")[-1] != importer or path.as_posix() in places, where


HEAVY = {"transformers", "matplotlib", "wandb", "tensorboard", "torch._dynamo", "torch._inductor", "sympy",
         "torch.distributed.fsdp", "torch.distributed.tensor", "torch.nn.attention.bias", "PIL", "math_verify"}  # fmt: skip
ASK = """
import sys, train, eval, sample
from maxrl.errors import UsageError
for words in ([], ["maze17", "--help"], ["maze17", "--dry-run"], ["maze17", "--lrr", "3"], ["nope"]):
    try:
        train.main(words)
    except UsageError:
        print("refused")
print(*{HEAVY} & sys.modules.keys())
"""


def test_nothing_heavy_is_loaded():
    """By the scripts themselves, by --help, --dry-run and a command that is refused: half of what a start would cost."""
    code = ASK.format(HEAVY=HEAVY)
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert said.count("refused") == 2 and said.endswith("\n\n"), said.splitlines()[-1]


def test_files_and_functions_stay_small():
    """No file over 400 lines, no function over 60."""
    for path, tree in sources().items():
        assert len((ROOT / path).read_text().splitlines()) <= 400, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


READING = ("train.py", "maxrl/advantages.py", "maxrl/losses.py", "maxrl/rollouts.py", "maxrl/policy.py", "maxrl/sampling/sampler.py",
           "maxrl/models/transformer.py", "maxrl/models/attention.py")  # fmt: skip
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
INSIDE = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.IfExp)


@pytest.mark.parametrize("name", READING)
def test_the_reading_path_is_calm(name):
    """The eight files that explain the method: short lines of few words, reasons of their own, nothing inside another."""
    text = (ROOT / name).read_text()
    nodes = list(ast.walk(ast.parse(text)))
    documented = [
        n
        for n in nodes
        if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(n)
    ]
    docstrings = {
        line for n in documented for line in range(n.body[0].lineno, n.body[0].end_lineno + 1)
    }
    tokens = [
        t
        for t in tokenize.generate_tokens(io.StringIO(text).readline)
        if t.start[0] not in docstrings
    ]
    code = [t for t in tokens if t.type in COUNTED]
    lines = {line for t in code for line in range(t.start[0], t.end[0] + 1)}
    reasons = [t for t in tokens if t.type == tokenize.COMMENT and not t.line[: t.start[1]].strip()]
    assert max(map(len, text.splitlines())) <= 100
    assert len(code) <= 10 * len(lines), "words a line"
    assert len(reasons) >= 0.08 * len(lines), "comments that say why"
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            assert not isinstance(node.targets[0], ast.Tuple), (
                f"line {node.lineno} packs several assignments"
            )
        if isinstance(node, INSIDE):
            assert not [n for n in ast.walk(node) if isinstance(n, INSIDE) and n is not node], (
                f"line {node.lineno} nests"
            )
