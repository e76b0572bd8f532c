"""The house: imports point one way, files stay small, extras are imported where they are used."""

import ast
import sys
from pathlib import Path

from tests import ROOT
from tests.helpers.started import python
from tests.repository.pages import ORDER

SCRIPTS = ("train.py", "eval.py", "sample.py")
# The advantages stand beside: they see no model, and what makes rollouts does not see them.
BESIDE = ("advantages", "models", "sampling", "tasks")
FILES = [ROOT / name for name in SCRIPTS]
FILES += [*ROOT.glob("maxrl/**/*.py"), *ROOT.glob("data/**/*.py")]
SOURCES = {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in FILES}


def imported(*statements: ast.AST) -> set[str]:
    """The modules that these import, also inside functions."""
    found = set()
    for node in (part for statement in statements for part in ast.walk(statement)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "maxrl" else {node.module}
    return found


def packages(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def allowed(room: str) -> set[str]:
    """The rooms that a file of this one may import."""
    below = {*ORDER[: ORDER.index(room) + 1]}
    if room in BESIDE:
        below -= {"advantages"}
    return below | {room}


def test_imports_point_one_way():
    """Each room imports those below it, and nobody imports a script or a test."""
    for path, tree in SOURCES.items():
        modules = imported(tree)
        assert not packages(modules) & {"train", "eval", "sample", "tests", "results"}, path
        inner = {module.split(".")[1] for module in modules if module.startswith("maxrl.")}
        folder, *parts = Path(path).with_suffix("").parts
        if folder == "data":
            assert "run" not in inner, path
        elif folder == "maxrl" and len(parts) > 1:
            assert inner & {*ORDER} <= allowed(parts[0]), path


def test_the_house_has_few_rooms():
    """A newcomer sees the rooms, two files to read first and what Python needs: 14 entries."""
    entries = {path.name for path in (ROOT / "maxrl").iterdir()} - {"__pycache__"}
    files = {"README.md", "__init__.py", "__main__.py", "minimal.py", "py.typed", "single_file.py"}
    assert entries == {*ORDER, *files}


def test_extras_are_imported_where_they_are_used():
    """A bare installation has five packages; everything else is imported inside functions."""
    needed = {"torch", "safetensors", "tokenizers", "numpy", "tqdm", "maxrl", "data"}
    for path, tree in SOURCES.items():
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert packages(imported(*top)) <= needed | sys.stdlib_module_names, path


UNSAFE = {"pickle", "dill", "joblib", "marshal", "shelve", "yaml", "cloudpickle", "runpy"}
CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "os.system", "os.popen"}
# Only these import reward functions and tasks, which are the user's own programs.
IMPORTERS = {"import_module", "exec_module"}


def test_no_file_is_run():
    """Checkpoints and data sets are data: no pickle, no eval, no shell, no remote code."""
    for path, tree in SOURCES.items():
        assert not packages(imported(tree)) & UNSAFE, path
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                check_call(call, path)


def check_call(call: ast.Call, path: str):
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    where = f"{path}, line {call.lineno}: {name}"
    assert name not in CALLS, where
    assert not {"trust_remote_code", "shell", "weights_only"} & given.keys(), where
    if name == "np.load":
        assert given.get("allow_pickle") == "False", where
    if name.split(".")[-1] in IMPORTERS:
        assert path == "maxrl/system/user_code.py", where


HEAVY = {"transformers", "matplotlib", "wandb", "tensorboard", "sympy", "PIL", "math_verify"}
HEAVY |= {"torch._dynamo", "torch._inductor", "torch.distributed.fsdp"}
ASK = """
import sys, maxrl
assert "torch" not in sys.modules
import train, eval, sample
from maxrl.system.errors import UsageError
for words in (["maze17", "--help"], ["maze17", "--dry-run"], ["nope"]):
    try:
        train.main(words)
    except (UsageError, SystemExit):
        pass
print("loaded", *{HEAVY} & sys.modules.keys())
"""


def test_nothing_heavy_is_loaded():
    """The scripts, --help, --dry-run and a refused command start without the slow imports, and
    `import maxrl` without torch."""
    done = python("-c", ASK.replace("{HEAVY}", repr(HEAVY)), cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1].split() == ["loaded"]


def test_files_and_functions_stay_small():
    """No file over 400 lines, no function over 60."""
    for path, tree in SOURCES.items():
        assert (ROOT / path).read_text().count("\n") <= 400, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"
