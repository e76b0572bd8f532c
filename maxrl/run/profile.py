"""What the time of a step goes into: `--profile N`."""

from torch.autograd import DeviceType
from torch.profiler import profile

from maxrl.run.cli import say

LINES = 10


def profiled(steps: range, run):
    """Yield the steps; with --profile N the main rank records N of them, after the first, which sets much up for the others.

    RUN/profile.json.gz is for https://ui.perfetto.dev. What took most time by itself, on a GPU its kernels, is said.
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
    finally:  # a run that ends before
        if recorder:
            report(recorder, run.path / "profile.json.gz")


def report(recorder, file):
    """Stop recording; write the trace to `file` and say the LINES operations with the most time of their own."""
    recorder.stop()
    recorder.export_chrome_trace(str(file))
    rows = recorder.key_averages()
    # Operations of the host have the time of their kernels too, which are rows of their own.
    kernels = [
        row for row in rows if row.device_type == DeviceType.CUDA and not row.is_user_annotation
    ]
    kind = "device" if kernels else "cpu"
    rows = [
        (getattr(row, f"self_{kind}_time_total"), row.count, row.key) for row in kernels or rows
    ]
    total = sum(time for time, _, _ in rows) or 1
    rows = sorted(rows, reverse=True)[:LINES]
    said = [
        f"  {time / total:6.1%} {time / 1000:11,.1f} ms {count:9,} x {name[:60]}"
        for time, count, name in rows
    ]
    say("\n".join([f"wrote {file}; own time on the {kind}:", *said]))
