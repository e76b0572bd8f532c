"""--profile N: which operations the time of a step goes into."""

from collections.abc import Iterator

import torch
from torch.profiler import profile, schedule

from maxrl.run.cli import say


def profiled(steps: range, run) -> Iterator[int]:
    """Yield the steps; with --profile N, the main rank records N of them.

    The first step is left out, because it sets up much for the others. RUN/profile.json.gz is for
    https://ui.perfetto.dev, and the operations that take the most time are printed.
    """
    if not (run.main and run.cfg.profile):
        yield from steps
        return

    def report(recorder: profile):
        file = run.path / "profile.json.gz"
        recorder.export_chrome_trace(str(file))
        kind = "cuda" if torch.cuda.is_available() and run.cfg.device != "cpu" else "cpu"
        table = recorder.key_averages().table(f"self_{kind}_time_total", row_limit=10)
        say(f"wrote {file}\n{table}")

    first = int(len(steps) > 1)
    plan = schedule(wait=0, warmup=first, active=run.cfg.profile, repeat=1)
    with profile(schedule=plan, on_trace_ready=report) as recorder:
        for step in steps:
            yield step
            recorder.step()
