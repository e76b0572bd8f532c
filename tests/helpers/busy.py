r"""Judge right LaTeX answers while other processes keep the machine busy; every verdict must be 1.

    python -m tests.helpers.busy [--busy 16] [--answers 200]

Limits of the verifier are on CPU time, so a verdict must not depend on the load of the machine.
"""

import argparse
import subprocess
import sys

from maxrl.tasks import verifiers

# These two take 1.4 and 0.5 s of CPU time.
HEAVY = [
    (r"\int_0^1 \frac{\ln(1+x)}{1+x^2}dx", r"\frac{\pi\ln 2}{8}"),
    ("2^{2^{10}}", "2^{1024}"),
]


# (box, answer), equal for every n, but not to the letter.
KINDS = (
    lambda n: (rf"\frac{{{n}}}{{{n + 1}}}", f"{n}/{n + 1}"),
    lambda n: (f"x^2+{2 * n}x+{n * n}", f"(x+{n})^2"),
    lambda n: (rf"{n}\sqrt{{2}}", rf"\sqrt{{{2 * n * n}}}"),
    lambda n: (f"{n}.5", rf"\frac{{{2 * n + 1}}}{{2}}"),
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--busy", type=int, default=16)
    parser.add_argument("--answers", type=int, default=200)
    args = parser.parse_args()
    more = [KINDS[i % 4](2 + i // 4) for i in range(args.answers - len(HEAVY))]
    boxes, answers = zip(*HEAVY, *more)
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(args.busy)]
    try:
        responses = [rf"\boxed{{{box}}}" for box in boxes]
        verdicts = verifiers.verify_math_batch(responses, answers)
    finally:
        for process in others:
            process.kill()
    wrong = verdicts.count(0.0)
    print(f"{len(boxes)} right answers beside {args.busy} busy processes: {wrong} judged wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
