"""Where the host waits for the simulated device, and what ranks send, by part of a step and line.

install()      before the runs
taken()        what was counted since the last time: {"calls": {part: calls}, "events": [...]}
table(...)     both as Markdown, for tests/README.md
"""

import collections
import os

import train
from maxrl.learning import packing, policy
from maxrl.run.directory import Run
from maxrl.run.logger import Logger
from maxrl.sampling import sampler
from maxrl.sampling.cuda import Late
from tests.gpu.simulated import cuda

# Of each part the functions that are it; calls of the first one are counted.
PARTS = {
    "token": [(sampler, "decode_step")],
    "look at ended rows, every 4 tokens": [(Late, "read")],
    "`generate()`": [(policy, "generate")],
    "micro-batch": [(policy.SequencePolicy, "loss"), (packing, "micro_batch")],
    "update": [
        (train, "update"),
        (policy.SequencePolicy, "backward"),
        (policy.SequencePolicy, "record"),
    ],
    "report of a step": [(Logger, "report"), (Run, "ends")],
    "evaluation": [(train, "evaluate")],
    "checkpoint": [(Run, "save")],
    "anything else of a run": [(train, "train")],
}
IN_A_STEP = ("micro-batch", "update", "report of a step", "anything else of a run")
WAITS = ("item", "shape", "to host", "to device")
OUTSIDE = "start and end"
CALLS: collections.Counter = collections.Counter()
SEEN: collections.Counter = collections.Counter()
stack = [OUTSIDE]


def part_of(name: str, function, counted: bool):
    """The function, during whose calls events belong to a part."""

    def call(*words, **options):
        CALLS[name] += counted
        stack.append(name)
        try:
            return function(*words, **options)
        finally:
            stack.pop()

    return call


def note(kind: str, operation: str, frame):
    code = frame and frame.f_code
    where = "a backward"
    if code:
        where = f"{os.path.basename(code.co_filename)}, {code.co_name}"
    SEEN[stack[-1], kind, operation, where] += 1


def install():
    cuda.NOTED.append(note)
    for name, functions in PARTS.items():
        for i, (owner, attribute) in enumerate(functions):
            setattr(owner, attribute, part_of(name, getattr(owner, attribute), i == 0))


def taken() -> dict:
    found = {"calls": dict(CALLS), "events": [[*key, n] for key, n in SEEN.items()]}
    CALLS.clear()
    SEEN.clear()
    return found


def rows(found: dict, kinds) -> dict:
    """{(part, place): [events in each call of the part, their bytes in each]}"""
    result: dict = collections.defaultdict(lambda: [0.0, 0.0])
    for part, kind, operation, where, n in found["events"]:
        if kind in kinds and part in found["calls"]:
            calls = found["calls"][part]
            size = int(operation.split()[1]) if kind == "collective" and " " in operation else 0
            result[part, where][0] += n / calls
            result[part, where][1] += n * size / calls
    return result


def in_a_step(found: dict, steps: int) -> float:
    """How often the host waits in a step outside of sampling and evaluations."""
    parts = rows(found, WAITS)
    return sum(
        n * found["calls"][part] / steps for (part, _), (n, _) in parts.items() if part in IN_A_STEP
    )


def table(alone: dict, ranks: dict[str, dict], weights: int) -> str:
    """alone: of one process; ranks: {name: of a rank}; weights: bytes of the model."""
    lines = ["| in each | at | waits | copies that may be staged |", "|---|---|---|---|"]
    waits, staged = rows(alone, WAITS), rows(alone, ("pageable",))
    for part in PARTS:
        places = sorted({where for each, where in (*waits, *staged) if each == part})
        for where in places:
            key = part, where
            lines.append(f"| {part} | {where} | {waits[key][0]:.3g} | {staged[key][0]:.3g} |")
        if not places:
            lines.append(f"| {part} | | 0 | 0 |")
    lines += ["", "| two ranks | in each | at | collectives | bytes | waits |", "|---" * 6 + "|"]
    for name, found in ranks.items():
        sent, waits = rows(found, ("collective",)), rows(found, WAITS)
        for part in PARTS:
            for where in sorted(where for each, where in sent if each == part):
                n, size = sent[part, where]
                amount = f"{size:.0f}"
                if size > weights / 4:
                    amount = f"{size / weights:.2g} x the weights"
                times = f"{waits[part, where][0]:.3g}"
                lines.append(f"| {name} | {part} | {where} | {n:.3g} | {amount} | {times} |")
    return "\n".join(lines)
