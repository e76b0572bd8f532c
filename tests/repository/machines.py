"""The suite as other machines would run it: `make test-machines`, or some rows, `make test-machines ROWS="smallest busy"`.

A row is an environment. What took effect in it is asked of the libraries themselves, by products made in it: a cap that a
library does not heed is seen here and not believed. Each row's log is kept beside the table, in --out.

    python tests/repository/machines.py [--rows native avx2] [--other .venv-other/bin/python] [--out runs/machines] [-- tests/test_x.py]
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ATEN, ONEDNN, MKL = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"
ROWS = {
    "native": {},
    "smallest": {
        ATEN: "default",
        ONEDNN: "SSE41",
        MKL: "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
    },  # what any 64-bit x86 can do
    "default": {ATEN: "default"},
    "avx2": {ATEN: "avx2", ONEDNN: "AVX2", MKL: "AVX2"},
    "onednn-avx2": {ONEDNN: "AVX2"},
    "mkl-avx2": {MKL: "AVX2"},
    "threads-2": {
        "MAXRL_TEST_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
    },  # two processes x two threads: none spins
    "float32": {
        "MAXRL_TEST_BFLOAT16": "0"
    },  # what a machine without AMX and AVX512-BF16 chooses anyway
    "bfloat16": {"MAXRL_TEST_BFLOAT16": "1"},
    "busy": {},  # two other processes at work
    "python": {},  # another Python, --other
}

# conftest.py first: it reads the environment as the suite does. Each library says itself what it computes with.
PROBE = """
import json, sys, warnings; warnings.filterwarnings("ignore")
sys.path[:0] = ["tests", "tests/helpers"]; import conftest, torch, maxrl.parallel.distributed as distributed
cpu = torch.device("cpu")
a = torch.sin(torch.arange(96 * 80.0)).view(96, 80)
b = torch.cos(torch.arange(80 * 64.0)).view(80, 64)
if torch.backends.mkldnn.is_available():
    torch.relu(a.to_mkldnn())
print(json.dumps({"python": sys.version.split()[0], "torch": torch.__version__, "threads": torch.get_num_threads(),
    "aten": torch.backends.cpu.get_cpu_capability(), "bfloat16": distributed.use_bfloat16("auto", cpu),
    "onednn": torch.backends.mkldnn.is_available(), "mkl": torch.backends.mkl.is_available(),
    "bits": (a @ b).numpy().tobytes().hex() + a.exp().numpy().tobytes().hex()}))
"""


def probe(python: str, environment: dict) -> dict:
    """What a process of this row computes with, by the libraries' own word."""
    environment = environment | {"ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
    done = subprocess.run(
        [python, "-c", PROBE], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    said = json.loads(done.stdout.strip().splitlines()[-1])
    isa = re.search(r"cpu,isa:(.*)", done.stdout)
    kernel = re.search(r"for Intel\(R\) 64 architecture (.*?)(?: enabled)? processors", done.stdout)
    mode = re.search(r"CNR:(\S+)", done.stdout)
    said["onednn"] = (
        isa.group(1) if isa else "no oneDNN in this build" if not said["onednn"] else "not asked"
    )
    said["mkl"] = (
        f"{kernel.group(1)}, CNR {mode.group(1) if mode else '?'}"
        if kernel
        else "no MKL in this build"
    )
    said["bits"] = hashlib.sha256(said["bits"].encode()).hexdigest()[
        :8
    ]  # of products: other kernels, other digits
    return said


def run(name: str, python: str, out: Path, more: list[str]) -> dict:
    """One row: the suite in two processes, its log in out/name.txt."""
    environment = (
        {"OMP_NUM_THREADS": ROWS[name].get("MAXRL_TEST_THREADS", "1")} | os.environ | ROWS[name]
    )
    row = {"row": name, "set": ROWS[name], "took": probe(python, environment)}
    spin = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 if name == "busy" else 0)
    ]
    begin, log = time.monotonic(), out / f"{name}.txt"
    try:
        with log.open("w") as file:
            command = [
                python,
                "-m",
                "pytest",
                "-n",
                "2",
                "--dist",
                "loadfile",
                "--no-loadscope-reorder",
                *more,
            ]
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
            ).returncode
    finally:
        for process in spin:
            process.kill()
            process.wait()
    text = log.read_text()
    counts = {
        word: sum(map(int, re.findall(rf"(\d+) {word}", text[-2000:])[-1:]))
        for word in ("passed", "failed", "error")
    }
    failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M)))
    return (
        row | counts | {"code": code, "seconds": round(time.monotonic() - begin), "tests": failed}
    )


def line(row: dict) -> str:
    took = row["took"]
    words = took.get("failed") or (
        f"Python {took['python']}, torch {took['torch']}, {took['threads']} threads, "
        f"{'bfloat16' if took['bfloat16'] else 'float32'} by itself; ATen {took['aten']}; oneDNN {took['onednn']}; "
        f"MKL {took['mkl']}; bits {took['bits']}"
    )
    verdict = f"{row['passed']} passed, {row['failed'] + row['error']} failed, {row['seconds']} s"
    return f"{row['row']:12} {verdict:34} {words}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows",
        nargs="*",
        metavar="ROW",
        help=f"of {', '.join(ROWS)} (all; python where --other is given)",
    )
    parser.add_argument(
        "--other", default="", help="another Python, of an environment with the same packages"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "machines")
    parser.add_argument(
        "more", nargs="*", metavar="-- PYTEST OPTION", help="which tests, for a trial"
    )
    args = parser.parse_args()
    names = args.rows or [name for name in ROWS if name != "python" or args.other]
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        sys.exit(f"machines.py: no row is called {unknown[0]}; there are {', '.join(ROWS)}")
    if "python" in names and not args.other:
        sys.exit(
            "machines.py: the row python needs another one: make test-machines ROWS=python OTHER=python3.13"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in names:
        row = run(name, args.other if name == "python" else sys.executable, args.out, args.more)
        rows.append(row)
        with (args.out / "machines.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(line(row), *(f"    {test}" for test in row["tests"]), sep="\n", flush=True)
    sys.exit(any(row["code"] for row in rows))


if __name__ == "__main__":
    main()
