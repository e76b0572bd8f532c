"""Run the suite as other machines would: `make test-machines ROWS="smallest busy"`.

A row is an environment that caps the instruction sets of torch's libraries, changes the number of
threads, or keeps the machine busy. The log of a row is runs/machines/ROW.txt.
"""

import os
import subprocess
import sys

from tests import ROOT

OUT = ROOT / "runs" / "machines"
# The smallest has what every 64-bit x86 processor has.
ROWS = {
    "native": "",
    "smallest": "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41"
    " MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_CBWR=COMPATIBLE",
    "avx2": "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2",
    "threads-2": "MAXRL_TEST_THREADS=2 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE",
    "float32": "MAXRL_TEST_BFLOAT16=0",
    "bfloat16": "MAXRL_TEST_BFLOAT16=1",
    "busy": "",
}
SUITE = [
    *(sys.executable, "-m", "pytest", "--disable-warnings"),
    *("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
]
SPIN = [sys.executable, "-c", "while True: pass"]


def run(name: str) -> int:
    """Run the suite in two processes and print its last line, with what failed; the exit code."""
    settings = dict(pair.split("=") for pair in ROWS[name].split())
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | settings
    others = [subprocess.Popen(SPIN) for _ in range(2 if name == "busy" else 0)]
    log = OUT / f"{name}.txt"
    try:
        with log.open("w") as file:
            code = subprocess.run(SUITE, env=environment, stdout=file, stderr=file).returncode
    finally:
        for process in others:
            process.kill()
    said = log.read_text()
    if code:
        print(said[max(said.find("= FAILURES ="), 0) :])
    print(f"{name:12} {said.splitlines()[-1]}", flush=True)
    return code


def main(names: list[str]) -> int:
    """Return the worst exit code of the rows, all if none is named."""
    OUT.mkdir(parents=True, exist_ok=True)
    return max(run(name) for name in names or ROWS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
