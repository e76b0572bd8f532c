"""The first thing to run on a GPU: does it all run there, is it right, and how fast is it?

    PYTHONPATH=.:tests:tests/helpers python tests/gpu/gpu_check.py [--block 1] [--only NAME]
    PYTHONPATH=.:tests:tests/helpers python tests/gpu/gpu_check.py --device cpu --tiny

Block 1 asks whether everything runs and is right, block 2 how fast it is. An item that fails stops
no other; --out gets a line of JSON for each. The second command tries the script on any machine.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import gpu_items
import gpu_runs

BLOCKS = {
    1: [
        gpu_items.versions,
        gpu_items.attention_values,
        gpu_items.synchronisations,
        gpu_runs.deterministic,
        gpu_runs.torchrun,
        gpu_runs.sharded,
        gpu_runs.resumed,
        gpu_runs.options,
        gpu_runs.recipes,
    ],
    2: [
        gpu_items.versions,
        gpu_items.decode_smollm2,
        gpu_items.decode_qwen3,
        gpu_items.graphs,
        gpu_items.whole_steps,
    ],
}


def check(item) -> dict:
    """Run one item: its name, whether it is well, its seconds, and what it found."""
    begin = time.monotonic()
    try:
        found = item()
    except Exception:
        found = {"wrong": traceback.format_exc()[-1500:]}
    gpu_items.free()
    wrong = found.pop("wrong", None)
    seconds = round(time.monotonic() - begin, 1)
    return {"item": item.__name__, "well": not wrong, "seconds": seconds, "wrong": wrong} | found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--block", type=int, choices=BLOCKS, nargs="*", default=list(BLOCKS))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.jsonl"))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--tiny", action="store_true", help="small sizes")
    args = parser.parse_args()
    gpu_items.start(args.device, args.tiny)
    items = dict.fromkeys(item for block in args.block for item in BLOCKS[block])
    failed = 0
    for item in items:
        if args.only and item.__name__ not in args.only:
            continue
        row = check(item)
        failed += not row["well"]
        print(json.dumps(row), flush=True)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
