"""--profile N: which operations the time of a step goes into."""

from collections.abc import Iterator

from torch.autograd import DeviceType
from torch.profiler import profile

from maxrl.run.cli import say

LINES = 10


def profiled(steps: range, run) -> Iterator[int]:
    """Yield the steps; with --profile N, the main rank records N of them.

    The first step is left out, because it sets up much for the others. RUN/profile.json.gz is for
    https://ui.perfetto.dev, and the operations that take the most time are printed.
    """
    first = min(1, len(steps) - 1)
    last = first + run.cfg.profile - 1
    recorder = None
    try:
        for place, step in enumerate(steps):
            if run.main and place == first <= last:
                recorder = profile()
                recorder.start()
            yield step
            if recorder and place == last:
                report(recorder, run.path / "profile.json.gz")
                recorder = None
    finally:
        # The run ended before its last recorded step.
        if recorder:
            report(recorder, run.path / "profile.json.gz")


def report(recorder: profile, file):
    """Stop recording, write the trace, and print the operations with the most time of their own."""
    recorder.stop()
    recorder.export_chrome_trace(str(file))
    rows = recorder.key_averages()
    # On a GPU, kernels have rows of their own, whose time operations of the host count again.
    kernels = [r for r in rows if r.device_type == DeviceType.CUDA and not r.is_user_annotation]
    kind = "device" if kernels else "cpu"
    times = [
        (getattr(row, f"self_{kind}_time_total"), row.count, row.key) for row in kernels or rows
    ]
    total = sum(time for time, _, _ in times) or 1
    say(f"wrote {file}; own time on the {kind}:")
    for time, count, name in sorted(times, reverse=True)[:LINES]:
        say(f"  {time / total:6.1%} {time / 1000:11,.1f} ms {count:9,} x {name[:60]}")
