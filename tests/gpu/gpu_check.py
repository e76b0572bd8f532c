"""The first thing to run on a GPU: does it all run there, is it right, and how fast is it?

    PYTHONPATH=. python tests/gpu/gpu_check.py --block 1 [--out gpu_check.jsonl] [--only NAME] [--seconds 540]
    PYTHONPATH=. python tests/gpu/gpu_check.py --block 2
    PYTHONPATH=. python tests/gpu/gpu_check.py --device cpu --tiny      # the script itself, on any machine

Needs torch and what torch and transformers bring along, and no network. Block 1 asks whether everything runs and is right,
block 2 how fast it is. An item is one line of JSON: its name, whether it is well, its seconds and what was found. Nothing
stops at an item that fails: the items run in a process of their own, which is started again after one that ended it, hung,
or left CUDA unusable. A command that is repeated runs the items that are not well yet, for at most --seconds.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import gpu_items
import gpu_runs

HERE = Path(__file__).resolve().parent
BLOCKS = {
    1: [
        gpu_items.versions,
        gpu_items.kernel_names,
        gpu_items.unseen_shapes,
        gpu_items.attention_values,
        gpu_items.synchronisations,
        gpu_runs.deterministic,
        gpu_runs.images_deterministic,
        gpu_runs.torchrun,
        gpu_runs.sharded,
        gpu_runs.resumed,
        gpu_runs.options,
        gpu_runs.recipes,
        gpu_items.decode_smollm2,
        gpu_items.decode_qwen3,
    ],
    2: [
        gpu_items.versions,
        gpu_items.graphs,
        gpu_items.drawing,
        gpu_items.micro_batches,
        gpu_items.whole_steps,
    ],
}
ITEMS = {item.__name__: item for block in BLOCKS.values() for item in block}
ITEM_SECONDS = 180  # that an item may take


def work(names: list[str], out: Path):
    """Run items one after the other, in this process."""
    for name in names:
        note(
            out, {"item": name, "well": None}
        )  # should it end this process, it is known which it was
        begin = time.monotonic()
        try:
            found = ITEMS[name]()
            wrong = found.pop("wrong", [])
            result = {"well": not wrong, "wrong": wrong, "found": found}
        except Exception as error:
            result = {"well": False, "error": "".join(traceback.format_exception(error))[-1500:]}
        note(out, {"item": name, "seconds": round(time.monotonic() - begin, 1)} | result)
        if "CUDA error" in result.get("error", ""):
            sys.exit(1)  # this process cannot use the GPU any more
        gpu_items.free()


def note(out: Path, row: dict):
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def state(out: Path) -> dict[str, dict]:
    """The last line of every item."""
    return (
        {row["item"]: row for row in map(json.loads, out.read_text().splitlines())}
        if out.exists()
        else {}
    )


def command(names: list[str], args) -> list[str]:
    """Of the process that runs items."""
    code = (
        f"import gpu_check, gpu_items, pathlib; gpu_items.start({args.device!r}, {args.tiny}); "
        f"gpu_check.work({names!r}, pathlib.Path({str(args.out)!r}))"
    )
    return [sys.executable, "-c", code]


def supervise(names: list[str], args):
    """Have the items run in processes, a new one after each that ends or hangs, until all are done or the time is up."""
    end = time.monotonic() + args.seconds
    while names and end - time.monotonic() > 5:
        environment = os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE}"}
        process = subprocess.Popen(command(names, args), env=environment, start_new_session=True)
        reason = "its process ended"
        before, since = None, time.monotonic()
        while process.poll() is None:
            running = next(
                (name for name, row in state(args.out).items() if row["well"] is None), None
            )
            if running != before:
                before, since = running, time.monotonic()
            if time.monotonic() - since > ITEM_SECONDS or time.monotonic() > end:
                reason = "it took too long"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            time.sleep(0.2)
        found = state(args.out)
        for row in found.values():
            if row["well"] is None:
                note(args.out, row | {"well": False, "error": reason})
        done = [name for name in names if found.get(name)]
        if not done:
            note(
                args.out,
                {"item": names[0], "well": False, "error": "no process could begin with it"},
            )
            done = names[:1]
        names = names[names.index(done[-1]) + 1 :]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--block", type=int, choices=BLOCKS, nargs="*", default=list(BLOCKS))
    parser.add_argument(
        "--only", nargs="*", choices=ITEMS, default=[], metavar="NAME", help=", ".join(ITEMS)
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gpu_check.jsonl"), metavar="FILE", help="(%(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=540,
        help="after which no item is begun and the last one ended",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to test this script")
    args = parser.parse_args()
    asked = args.only or dict.fromkeys(
        item.__name__ for block in args.block for item in BLOCKS[block]
    )
    before = state(args.out)
    supervise([name for name in asked if not before.get(name, {}).get("well")], args)
    after = state(args.out)
    for name in asked:
        row = after.get(name, {"well": None})
        word = {True: "well", False: "FAILED", None: "not run"}[row["well"]]
        said = (
            row.get("wrong")
            or row.get("error", "").strip().splitlines()[-1:]
            or row.get("found", "")
        )
        print(f"{word:8} {row.get('seconds', ''):>6} {name}: {json.dumps(said)[:300]}")
    sys.exit(not all(after.get(name, {}).get("well") for name in asked))


if __name__ == "__main__":
    main()
