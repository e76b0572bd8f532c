"""What the rows of bench.py have in common: turns, seconds, peak memory, counted FLOPs, and the
machine's limits."""

import contextlib
import time
from functools import partial

import torch
from torch.nn.attention.bias import CausalBias
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from maxrl.system import distributed

device = torch.device("cpu")
small = False


def start(threads: int, name: str, tiny: bool):
    """Before a row: this process's threads and device, and whether all sizes are small."""
    global device, small
    small = tiny
    torch.set_num_threads(threads)
    # As a run does it, with a run's settings.
    device = distributed.setup(name)
    torch.manual_seed(0)


def sized(full, tiny_one):
    """What a row works with: with --tiny, what any CPU does in a moment."""
    return tiny_one if small else full


def low() -> bool:
    """Whether this machine takes bfloat16 by itself."""
    return distributed.use_bfloat16("auto", device)


def autocast(dtype: str):
    """The context of a forward in "float32" or "bfloat16"."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")


def now() -> tuple[float, float]:
    """The clock and this process's CPU seconds, when the device has done all that it was told to
    do."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def timed(function) -> tuple[float, float]:
    """Wall and CPU seconds of a call."""
    wall, cpu_time = now()
    function()
    later, after = now()
    return later - wall, after - cpu_time


def repeated(repeats: int, function, *arguments):
    """Call a function that often; its results are dropped."""
    for _ in range(repeats):
        function(*arguments)


def peak_gb() -> float:
    return distributed.peak_memory(device)["memory/peak_gb"]


class Times(dict):
    """{who: {"wall": [seconds], "cpu": [seconds]}}."""

    def note(self, who: str, wall: float, cpu: float):
        times = self.setdefault(who, {"wall": [], "cpu": []})
        times["wall"].append(wall)
        times["cpu"].append(cpu)


def contest(what: str, contestants: dict, turns: int, work, unit: str, **more) -> dict:
    """A row of the table: seconds of every contestant in A B C A B C ..., each warmed up once
    before, and the FLOPs of the first one.

    work  done by each contestant in a turn, or the same by all
    more  rivals, dtype
    """
    first, *others = contestants.values()
    flops = counted(first)
    for function in others:
        function()
    times = Times()
    for _ in range(turns):
        for who, function in contestants.items():
            times.note(who, *timed(function))
    return row(what, times, work, unit, flops=flops, **more)


def counted(function) -> int:
    """The FLOPs of a call: 2 for a multiplication and addition of a matrix product; all pairs of an
    attention, seen or not."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def forward(q, k, v, *rest, **named):
        return sdpa_flop_count(q, k, v)

    def backward(gradient, q, k, v, *rest, **named):
        return sdpa_backward_flop_count(gradient, q, k, v)

    attention = {flash: forward, flash_backward: backward}
    counter = FlopCounterMode(display=False, custom_mapping=attention)
    with whole_biases(), counter:
        function()
    return counter.get_total_flops()


@contextlib.contextmanager
def whole_biases():
    """Under a dispatch mode torch cannot make a CausalBias, a tensor in name only: here it is made
    outside of the mode."""

    def made(cls, *sizes):
        with _disable_current_modes():
            return torch.Tensor.__new__(cls)

    CausalBias.__new__ = made
    try:
        yield
    finally:
        del CausalBias.__new__


def limits(turns: int) -> dict:
    """The row of what this machine can do at best: FLOP/s of matrix products, bytes/s of a copy,
    read and written, and of a sum, read."""
    contestants = {}
    work = {}

    def add(who: str, each: int, total: int, function, *arguments):
        """`each` is the work of a call; all calls of a turn do about `total`."""
        repeats = sized(max(1, total // each), 1)
        contestants[who] = partial(repeated, repeats, function, *arguments)
        work[who] = each * repeats

    fast = 1 if device.type == "cpu" else 100
    shapes = (2048, 2048, 2048), (4096, 256, 1024), (256, 256, 1024)
    for rows, inner, columns in sized(shapes, ((64, 64, 64),)):
        for dtype in ("float32", "bfloat16"):
            a = torch.randn(rows, inner, device=device).to(getattr(torch, dtype))
            b = torch.randn(inner, columns, device=device).to(a.dtype)
            who = f"[{rows},{inner}]x[{inner},{columns}] {dtype}"
            flops = 2 * rows * inner * columns
            add(who, flops, fast * 6 * 2048**3, torch.matmul, a, b)
    for megabytes in sized((256, 1), (1,)):
        source = torch.ones(megabytes * 2**18, device=device)
        target = torch.empty_like(source)
        copied = 2 * source.nbytes
        add(f"copy of {megabytes} MiB", copied, fast * 2**31, target.copy_, source)
        add(f"sum of {megabytes} MiB", source.nbytes, fast * 2**30, source.sum)
    return contest("FLOP/s, bytes/s", contestants, turns, work, "FLOP")


def row(what: str, times: Times, work, unit: str, **more) -> dict:
    """A row of seconds that were taken; more: also flops, peaks."""
    work = work if isinstance(work, dict) else dict.fromkeys(times, work)
    return {"what": what, "times": times, "work": work, "unit": unit, "peak_gb": peak_gb()} | more
