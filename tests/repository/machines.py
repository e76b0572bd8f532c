"""Run the suite as other machines would: `make test-machines ROWS="smallest busy"`.

A row is an environment that caps the instruction sets of torch's libraries, changes the number of
threads, or keeps the machine busy. The log of a row is runs/machines/ROW.txt.
"""

import os
import subprocess
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "runs" / "machines"
# Every 64-bit x86 processor has these.
SMALLEST = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE",
}
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
ROWS: dict[str, dict[str, str]] = {
    "native": {},
    "smallest": SMALLEST,
    "avx2": AVX2,
    "threads-2": {"MAXRL_TEST_THREADS": "2", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    "float32": {"MAXRL_TEST_BFLOAT16": "0"},
    "bfloat16": {"MAXRL_TEST_BFLOAT16": "1"},
    "busy": {},
}


def run(name: str) -> int:
    """Run the suite in two processes; the exit code of pytest."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | ROWS[name]
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(2 if name == "busy" else 0)]
    log = OUT / f"{name}.txt"
    suite = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile"]
    try:
        with log.open("w") as file:
            code = subprocess.run(suite, env=environment, stdout=file, stderr=file).returncode
    finally:
        for process in others:
            process.kill()
    print(f"{name:12} {log.read_text().splitlines()[-1]}", flush=True)
    return code


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    sys.exit(max(run(name) for name in sys.argv[1:] or ROWS))
