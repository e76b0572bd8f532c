"""The default path without what Linux alone has, as on macOS, in a process of its own: nothing is
forked, /proc is not there, and neither are Linux's calls, signals and limits.
"""

import os

from tests.helpers.started import python

# In every process that is started.
ELSEWHERE = """
import multiprocessing, os, resource, select, signal, sys
ABSENT = {
    os: "sched_ posix_fa memfd_ eventfd pidfd_ splice copy_file_range setns unshare O_TMPFILE",
    select: "epoll EPOLL",
    signal: "SIGRT SIGPWR SIGSTKFLT sigwaitinfo sigtimedwait pidfd_",
    resource: "prlimit RLIMIT_MSG RLIMIT_NICE RLIMIT_RT RLIMIT_SIG RLIMIT_OFILE",
}
for module, names in ABSENT.items():
    for name in [*vars(module)]:
        if name.startswith(tuple(names.split())):
            delattr(module, name)
limit = resource.setrlimit
def setrlimit(which, limits):
    if which == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    limit(which, limits)
resource.setrlimit = setrlimit
def refuse(event, arguments):
    named = str(arguments[0]) if event == "open" else ""
    if named.startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(named)
    if event.startswith("os.fork"):
        raise OSError(event)
sys.addaudithook(refuse)
multiprocessing.set_start_method("spawn", force=True)
"""
# In the one that trains, when torch has loaded Linux's libraries.
PROGRAM = """
if __name__ == "__main__":
    import importlib.util, sys, tokenizers, torch._dynamo
    sys.platform = "darwin"
    torch.backends.cpu.get_cpu_capability = lambda: "DEFAULT"
    base, out = sys.argv[1:]
    from data.maze import prepare
    prepare.main(f"--size 7 --train 96 --validation 24 --test 24 --workers 2 --out {out}".split())
    small = "--prompts 4 --rollouts 4 --steps 2 --eval-samples 64 --max-response 6 --workers 1"
    maze = f"--task.size 7 --task.directory {out}"
    run = f"maze9_laptop --init {base} --out {out}/run --eval-every 1 --eval-prompts 4"
    importlib.import_module("train").main(f"{run} {maze} {small}".split())
    importlib.import_module("eval").main(f"{out}/run --prompts 4 --samples 8".split())
    if importlib.util.find_spec("math_verify"):
        from maxrl.tasks.verifiers import verify_math_batch
        assert verify_math_batch(["\\\\boxed{1/2}"], ["0.5"]) == [1.0]
    print("all of it")
"""


def test_training_and_evaluation_need_nothing_of_linux(dice, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(ELSEWHERE)
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    words = ("program.py", dice, tmp_path / "data")
    done = python(*words, cwd=tmp_path, env={"PYTHONPATH": path}, timeout=300)
    assert done.returncode == 0 and "all of it" in done.stdout, done.stderr
