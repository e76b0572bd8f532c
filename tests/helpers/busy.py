r"""Verdicts on a busy machine: 200 right LaTeX answers are judged beside 16 processes that never rest, then once more while
the processes that judge are killed at random. Every verdict must be 1; time-outs and deaths are counted.

    python tests/helpers/busy.py [--busy 16] [--answers 200] [--kills 15]        about two minutes on two cores
"""

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEAVY = [
    (r"\int_0^1 \frac{\ln(1+x)}{1+x^2}dx", r"\frac{\pi\ln 2}{8}"),
    ("2^{2^{10}}", "2^{1024}"),
]  # 1.4 and 0.5 s


def right_answers(count: int):
    """(box, answer): equal, but not to the letter."""
    kinds = (
        lambda n: (rf"\frac{{{n}}}{{{n + 1}}}", f"{n}/{n + 1}"),
        lambda n: (f"x^2+{2 * n}x+{n * n}", f"(x+{n})^2"),
        lambda n: (rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}"),
        lambda n: (rf"\{{{n}, {n + 2}\}}", rf"\{{{n + 2},{n}\}}"),
        lambda n: (f"{n}.5", rf"\frac{{{2 * n + 1}}}{{2}}"),
    )
    return [kinds[i % len(kinds)](2 + i // len(kinds)) for i in range(count)]


def judged(what: str, pairs: list) -> int:
    from maxrl import verifiers

    verifiers.take_counts()
    begin = time.perf_counter()
    verdicts = verifiers.verify_math_batch(
        [rf"\boxed{{{box}}}" for box, _ in pairs], [answer for _, answer in pairs]
    )
    counts = {
        name.removeprefix("rewards/verifier_"): int(n)
        for name, n in verifiers.take_counts().items()
    }
    wrong = verdicts.count(0.0)
    print(
        f"{what}: {len(pairs)} right answers, {wrong} judged wrong, {counts['timeouts']} time-outs, {counts['deaths']} "
        f"deaths, {time.perf_counter() - begin:.0f} s, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--busy", type=int, default=16)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--kills", type=int, default=15)
    args = parser.parse_args()
    from maxrl import verifiers
    from maxrl.io.sandbox import Worker

    pairs, answered, kills, ask = right_answers(args.answers), [], [], Worker.ask
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)
    ]
    try:
        wrong = judged(f"beside {args.busy} busy processes", HEAVY + pairs[len(HEAVY) :])
    finally:
        for process in others:
            process.kill()
    verifiers.POOL.forget()

    def noted(self, *arguments):
        answer = ask(self, *arguments)
        answered.append(self)
        return answer

    def kill():
        rng = random.Random(0)
        while len(kills) < args.kills:
            time.sleep(rng.uniform(0, 1))
            # After its test, a worker's first request may be a repeated one, and nothing is promised
            # of a comparison whose process is killed twice.
            seen = [worker for worker in set(answered) if answered.count(worker) > 1]
            alive = [worker for worker in seen if worker.process.poll() is None]
            if alive:
                rng.choice(alive).process.kill()
                kills.append(1)

    Worker.ask = noted
    thread = threading.Thread(target=kill)
    thread.start()
    rounds = 0
    while thread.is_alive():
        rounds += 1
        wrong += judged("while processes are killed", pairs)
    print(f"{len(kills)} kills in {rounds} rounds; {wrong} wrong verdicts in all")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
