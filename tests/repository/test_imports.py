"""The house: imports point one way, files stay small, extras are imported where they are used."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

FRONT = ("train", "eval", "sample")
# What a part of maxrl/ may import from it; every part that is not named here is the method.
RULES = {
    "io": {"io", "errors"},
    "method": {"method", "io"},
    "study": {"method", "io", "study"},
    "run": {"method", "io", "run"},
}
STUDY = {"plots", "report", "toy"}
# `python -m maxrl.grid` and `maxrl` are names of what lies in run/ and at the top.
ENTRIES = {"maxrl/grid.py"}


@functools.cache
def sources() -> dict[Path, ast.Module]:
    """{path within the project: parsed file}, without the tests."""
    files = [ROOT / f"{name}.py" for name in FRONT]
    files += [*ROOT.glob("maxrl/**/*.py"), *ROOT.glob("data/**/*.py")]
    return {f.relative_to(ROOT): ast.parse(f.read_text()) for f in sorted(files)}


def ring(part: str) -> str:
    return "study" if part in STUDY else part if part in RULES else "method"


def imported(tree: ast.AST) -> set[str]:
    """Every module imported anywhere in a file, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "maxrl" else {node.module}
    return found


def test_imports_point_one_way():
    """io knows no method, the method knows no run, and nobody imports a script or a test."""
    for path, tree in sources().items():
        modules = imported(tree)
        assert not {m.split(".")[0] for m in modules} & {*FRONT, "tests"}, path
        inner = {m.split(".")[1] for m in modules if m.startswith("maxrl.")}
        if path.parts[0] == "data":
            assert "run" not in inner, path
        elif path.parts[0] == "maxrl" and path.as_posix() not in ENTRIES:
            allowed = RULES[ring(path.with_suffix("").parts[1])]
            wrong = {name for name in inner if name not in allowed and ring(name) not in allowed}
            assert not wrong, f"{path} imports {wrong}"


def test_extras_are_imported_where_they_are_used():
    """A bare installation has five packages; everything else is imported inside functions."""
    needed = {"torch", "safetensors", "tokenizers", "numpy", "tqdm", "maxrl", "data"}
    for path, tree in sources().items():
        top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
        found = {m.split(".")[0] for m in imported(top)}
        assert found <= needed | set(sys.stdlib_module_names), path


UNSAFE = {"pickle", "dill", "joblib", "marshal", "shelve", "yaml", "cloudpickle", "runpy"}
CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "os.system", "os.popen", "np.load"}
# Only these import reward functions and tasks, which are the user's own programs.
IMPORTERS = {"import_module", "exec_module"}


def test_no_file_is_run():
    """Checkpoints and data sets are data: no pickle, no eval, no shell, no remote code."""
    for path, tree in sources().items():
        assert not {m.split(".")[0] for m in imported(tree)} & UNSAFE, path
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            given = {k.arg: ast.unparse(k.value) for k in call.keywords}
            where = f"{path}, line {call.lineno}: {name}"
            safe = name == "np.load" and given.get("allow_pickle") == "False"
            assert name not in CALLS or safe, where
            assert not {"trust_remote_code", "shell", "weights_only"} & given.keys(), where
            if name.split(".")[-1] in IMPORTERS:
                assert path.as_posix() == "maxrl/io/user_code.py", where


HEAVY = {"transformers", "matplotlib", "wandb", "tensorboard", "sympy", "PIL", "math_verify"}
HEAVY |= {"torch._dynamo", "torch._inductor", "torch.distributed.fsdp"}
ASK = """
import sys, train, eval, sample
from maxrl.errors import UsageError
for words in (["maze17", "--help"], ["maze17", "--dry-run"], ["nope"]):
    try:
        train.main(words)
    except (UsageError, SystemExit):
        pass
print("loaded", *{HEAVY} & sys.modules.keys())
"""


def test_nothing_heavy_is_loaded():
    """The scripts, --help, --dry-run and a refused command start without the slow imports."""
    command = [sys.executable, "-c", ASK.replace("{HEAVY}", repr(HEAVY))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["loaded"]


def test_files_and_functions_stay_small():
    """No file over 400 lines, no function over 60."""
    for path, tree in sources().items():
        assert len((ROOT / path).read_text().splitlines()) <= 400, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"
