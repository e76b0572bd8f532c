"""A simulated CUDA device for torch's CPU build: the control flow of a GPU run, without a GPU.

    python -m tests.gpu.simulated.cuda [--limit GIB] [--report FILE] train.py RECIPE --device cuda

or, before any other use of torch, `cuda.install()`. Tensors of the device have the real dispatch
key, storage and device of CUDA, and their bytes lie in host memory: a boxed fallback for the key
runs every operation on aliases of the same bytes by the CPU kernel, so that values are those of a
CPU run.

Memory is kept as torch's allocator keeps it: what is freed is used again by its stream and pool
alone until it is released. No allocation in a capture releases any, nor one in a pool (torch 2.11).

What raises, as on a GPU: tensors of two devices in one operation (per operation, after the flag
device_check of native_functions.yaml); operations without a CUDA kernel; numpy() of a CUDA tensor
and generators of the host (natively); memory beyond --limit; a tensor that another stream has
written, without a wait between them; in the capture of a graph every wait and every blocking copy,
and its end if no other thread may touch the device meanwhile; under deterministic algorithms what
torch's documentation lists.

What is counted, with the line of the caller's code: waits of the host (`EVENTS`, `taken()`):
  item       a number is read (float(), bool(), int(), .item())
  to host    a blocking copy from the device     shape    nonzero, unique, index by a bool mask
  to device  a blocking copy to the device       pageable a non-blocking one from unpinned memory
A graph is captured as on a GPU: capture runs nothing (memory is put back at its end), and a replay
repeats the recorded operations on the recorded addresses.

What it cannot see: kernels (which attention is chosen, their limits of strides, sizes and types,
their rounding, checks that only they make), cuDNN, cuBLAS workspaces, fragmentation, the memory of
graphs themselves, memory that one stream frees while another one still reads it, errors that arrive
late, a second device, time. A copy to the host with non_blocking=True arrives when the host waits,
for whatever it is, and one from pinned memory never waits. Whatever asks for
torch's own CUDA bindings (torch._C._cuda_*, the profiler, torch.compile) is not there.

The device cannot be taken back, so that it is in a process of its own. Processes that are started
by others (torchrun) get it from a sitecustomize.py in a folder of PYTHONPATH.
"""

import argparse
import collections
import contextlib
import fcntl
import hashlib
import os
import re
import runpy
import shutil
import sys
import sysconfig
import types
import warnings
from pathlib import Path

import torch

SOURCE = Path(__file__).with_suffix(".cpp")
EVENTS: collections.Counter = collections.Counter()  # (kind, operation, line of the caller)
NOTED: list = []  # who else is told of an event: note(kind, operation, frame)
SYNC = {"mode": "default"}  # of torch.cuda.set_sync_debug_mode; "warn" warns as on a GPU
USED = {"device": False}  # whether the device has been set, as is_initialized() tells
HERE = ("/torch/", "/tests/gpu/simulated/")
SHAPES = """nonzero masked_select _unique2 unique_dim unique_consecutive unique_dim_consecutive
    bincount equal"""
# What raises under torch.use_deterministic_algorithms(True), by torch's documentation.
RANDOM = """histc histc.out median.dim_values put_ _adaptive_avg_pool2d_backward _ctc_loss
    max_unpool2d adaptive_max_pool2d_backward.grad_input upsample_bilinear2d_backward.grad_input
    nll_loss2d_forward nll_loss2d_forward.output reflection_pad2d_backward.grad_input
    grid_sampler_2d_backward"""


def event(kind: str, operation: str):
    """Count a wait by the nearest line outside of torch and of this file."""
    frame = sys._getframe(0).f_back
    while frame and any(part in frame.f_code.co_filename for part in HERE):
        frame = frame.f_back
    where = "in a backward, or in a thread of torch"
    if frame:
        if SYNC["mode"] == "warn" and kind not in ("pageable", "collective"):
            said = "called a synchronizing CUDA operation"
            warnings.warn_explicit(said, UserWarning, frame.f_code.co_filename, frame.f_lineno)
        where = f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"
    if kind in ("item", "shape", "to host"):
        torch.ops.simulated.host_waits()
    operation = operation.removeprefix("aten::")
    EVENTS[kind, operation, where] += 1
    for note in NOTED:
        note(kind, operation, frame)


def taken() -> collections.Counter:
    """Return the events since the last call."""
    found = EVENTS.copy()
    EVENTS.clear()
    return found


def tables() -> dict[str, list[str]]:
    """Return which operations may mix devices and which have no CUDA kernel."""
    import torchgen

    file = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    found: dict[str, list[str]] = {"mixing": [], "absent": []}
    for block in re.split(r"\n- func: ", file.read_text())[1:]:
        name = "aten::" + block[: block.index("(")]
        if "device_check: NoCheck" in block:
            found["mixing"].append(name)
        kernels = re.search(r"\n  dispatch:\n((?:    .*\n?)+)", block)
        if kernels and not re.search("CUDA|Composite|structured", block):
            found["absent"].append(name)
    return found


def missing() -> str:
    """Return what a machine lacks to build the device, or ""."""
    if sys.platform != "linux":
        return "the simulated device is made for Linux"
    for tool in (os.environ.get("CXX", "c++"), "ninja"):
        if not shutil.which(tool):
            return f"no {tool} to build the simulated device"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"no {header} to build the simulated device"


def build() -> Path:
    """Return the extension, built by the first process that needs it, in torch's folder of them."""
    from torch.utils import cpp_extension

    version = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    name = f"simulated_cuda_{version}"
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    folder = Path(root, name)
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{name}.so"
    # torch's own lock is a file, which a killed process would leave behind.
    with open(folder / "locked", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        if not (folder / "built").exists():
            flags = {"extra_cflags": ["-O0"], "is_python_module": False}
            cpp_extension.load(name, [str(SOURCE)], build_directory=str(folder), **flags)
            (folder / "built").touch()
    return library


class Event:
    def __init__(self, *_, **__):
        pass

    def record(self, stream=None):
        torch.ops.simulated.record_event(id(self), (stream or Stream.current).stream_id)

    def wait(self, stream=None):
        torch.ops.simulated.wait_event((stream or Stream.current).stream_id, id(self))

    def query(self):
        return True

    def synchronize(self):
        event("to host", "event.synchronize")

    def elapsed_time(self, other):
        return 0.0


class Stream:
    """Work runs at once, but what one has written is there for another one after a wait alone."""

    current = default = None
    made = 0
    device = torch.device("cuda", 0)
    device_index = 0

    def __init__(self, *_, **__):
        self.cuda_stream = self.stream_id = Stream.made
        Stream.made += 1

    def wait_stream(self, other):
        torch.ops.simulated.wait_for(self.stream_id, other.stream_id)

    def wait_event(self, event):
        event.wait(self)

    def record_event(self, made=None):
        made = made or Event()
        made.record(self)
        return made

    def query(self):
        return True

    def synchronize(self):
        event("to host", "stream.synchronize")


@contextlib.contextmanager
def stream(chosen):
    before = Stream.current
    set_stream(chosen or before)
    try:
        yield
    finally:
        set_stream(before)


def set_stream(chosen):
    Stream.current = chosen
    torch.ops.simulated.set_stream(chosen.stream_id)


class MemPool:
    """Its memory is given back when it is forgotten, unless a graph still holds the pool."""

    made = 0
    empties = True

    def __init__(self, *_, **__):
        MemPool.made += 1
        CUDAGraph.counts["pools"] += 1
        self.id = (0, MemPool.made)
        torch.ops.simulated.hold_pool(self.id[1], 1, False)

    def __del__(self):
        if sys is not None and not sys.is_finalizing():
            torch.ops.simulated.hold_pool(self.id[1], -1, self.empties)


def in_pools() -> int:
    """Bytes that are reserved for pools."""
    return torch.ops.simulated.numbers()[4]


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    torch.ops.simulated.use_pool(pool.id[1])
    try:
        yield
    finally:
        torch.ops.simulated.use_pool(0)


class CUDAGraph:
    """capture_begin to capture_end run nothing; replay() repeats what was recorded."""

    counts: collections.Counter = collections.Counter()

    def __init__(self, *_, **__):
        self.recorded = False
        self.memory = None

    def capture_begin(self, pool=None, capture_error_mode="global"):
        if Stream.current is Stream.default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        if pool is None:
            pool = MemPool().id
        self.memory = pool
        self.mode = capture_error_mode
        torch.ops.simulated.hold_pool(pool[1], 1, False)
        torch.ops.simulated.use_pool(pool[1])
        torch.ops.simulated.begin(id(self))
        self.counts["captures"] += 1
        self.counts["grown"] -= in_pools()

    def capture_end(self):
        torch.ops.simulated.end()
        torch.ops.simulated.use_pool(0)
        self.counts["grown"] += in_pools()
        # The thread of NCCL that looks at events is one that always runs.
        if self.mode == "global":
            raise RuntimeError("CUDA error: operation failed due to an error during capture")
        self.recorded = True

    def replay(self):
        if not self.recorded:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        torch.ops.simulated.replay(id(self))
        self.counts["replays"] += 1

    def pool(self):
        return self.memory

    def reset(self):
        if sys is not None and not sys.is_finalizing():
            torch.ops.simulated.forget(id(self))
            if self.memory:
                # Free from now on, but given back by a later allocation or empty_cache() alone.
                torch.ops.simulated.hold_pool(self.memory[1], -1, False)
                self.memory = None

    __del__ = reset


def install(limit_gib: float = 0.0):
    """Make `cuda` a device of this process, before any other use of torch."""
    if Stream.default:
        return
    sys.modules["simulated_cuda"] = sys.modules[__name__]  # what the C++ calls
    torch.ops.load_library(build())
    device = torch.ops.simulated
    device.hook()
    chosen = {"shapes": SHAPES.split(), "random": RANDOM.split()}
    for kind, names in (tables() | chosen).items():
        device.name_sets(kind, [n if "::" in n else f"aten::{n}" for n in names])
    device.reset(int(limit_gib * 2**30))
    total = int(limit_gib * 2**30) or 80 * 2**30
    about = types.SimpleNamespace(
        name="simulated", total_memory=total, major=9, minor=0, multi_processor_count=132
    )
    Stream.current = Stream.default = Stream()

    def number(index):
        return lambda *_, **__: device.numbers()[index]

    def just(value):
        return lambda *_, **__: value

    fixed = {
        "is_available": True, "device_count": 1, "current_device": 0,
        "_is_in_bad_fork": False, "_lazy_init": None, "init": None,
        "manual_seed": None, "manual_seed_all": None, "set_rng_state": None,
        "set_rng_state_all": None, "is_bf16_supported": True, "get_device_properties": about,
        "get_device_name": about.name, "get_device_capability": (about.major, about.minor),
        "_exchange_device": 0, "_maybe_exchange_device": 0,
    }  # fmt: skip

    def set_device(wanted):
        if torch.device(wanted).index:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({wanted})")
        USED["device"] = True

    def mem_get_info(*_):
        most = device.numbers()[-1] or total
        return most - device.numbers()[2], most

    replaced = {name: just(value) for name, value in fixed.items()} | {
        "Stream": Stream, "Event": Event, "CUDAGraph": CUDAGraph, "stream": stream,
        "set_stream": set_stream, "MemPool": MemPool, "use_mem_pool": use_mem_pool,
        "empty_cache": lambda: device.empty_cache(),
        "current_stream": lambda *_: Stream.current, "default_stream": lambda *_: Stream.default,
        "device": lambda *_: contextlib.nullcontext(),
        "is_initialized": lambda: USED["device"], "set_device": set_device,
        "synchronize": lambda *_: event("to host", "synchronize"),
        "set_sync_debug_mode": lambda mode: SYNC.update(mode=mode),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "memory_allocated": number(0), "memory_reserved": number(2),
        "max_memory_allocated": number(1), "max_memory_reserved": number(3),
        "reset_peak_memory_stats": lambda *_: device.reset(-1),
        "mem_get_info": mem_get_info,
    }  # fmt: skip
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    resize = torch.UntypedStorage.resize_

    def resize_(storage, size):
        if storage.device.type != "cuda":
            return resize(storage, size)
        device.resize_storage(storage, size)
        return storage

    torch.UntypedStorage.resize_ = resize_


def main():
    parser = argparse.ArgumentParser(usage=str(__doc__).split("\n")[2].strip())
    parser.add_argument("--limit", type=float, default=0.0, help="GiB of the device")
    parser.add_argument("--report", help="file for the events of the run, most frequent first")
    parser.add_argument("-m", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    install(given.limit)
    sys.argv = [given.script, *given.arguments]
    sys.path[0] = os.getcwd()
    try:
        run = runpy.run_module if given.m else runpy.run_path
        run(given.script, run_name="__main__")
    finally:
        lines = [f"{n:7} {' | '.join(key)}" for key, n in EVENTS.most_common()]
        lines.append(f"{Stream.made - 1} streams made, {dict(CUDAGraph.counts)} of graphs")
        Path(given.report or os.devnull).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
