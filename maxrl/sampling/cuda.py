"""CUDA graphs and late reads, so that a GPU and the host do not wait for each other."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor


class CudaGraph:
    """A function that only reads and writes tensors, called once per token.

    On a GPU the first call with a shape runs the function, the second one captures it in a CUDA
    graph, and later ones replay the graph: one launch for all kernels. A graph lives as long as its
    shape, which is tens of tokens, so that no address has to outlive a rollout. On a CPU, with
    `wanted` false, and after a capture of this process has failed, every call runs the function.
    """

    failed = False
    # One for the process: a block of memory is used again by the stream it was made for alone.
    side: torch.cuda.Stream | None = None
    # What the function allocates, so that waves, rounds and evaluations take no more than one.
    pool: Any = None  # a torch.cuda.MemPool

    def __init__(self, function: Callable[[], None], device: torch.device, wanted: bool = True):
        self.function = function
        self.used = wanted and device.type == "cuda" and not CudaGraph.failed
        self.graph: torch.cuda.CUDAGraph | None = None
        self.shape: torch.Size | None = None
        if self.used and not CudaGraph.pool:
            CudaGraph.side = CudaGraph.side or torch.cuda.Stream()
            # No allocation in a pool frees what others have cached, such as a gradient's memory.
            free, total = torch.cuda.mem_get_info()
            if free < total / 4:
                torch.cuda.empty_cache()
            CudaGraph.pool = torch.cuda.MemPool()

    def __call__(self, shape: torch.Size) -> None:
        """Run the function once; another shape means other tensors."""
        if not self.used:
            self.function()
        elif shape != self.shape:
            # Not captured, because libraries set themselves up in their first call. It leaves the
            # memory in the pool that the capture needs.
            self.shape = shape
            self.graph = None
            with self.side_stream(), torch.cuda.use_mem_pool(CudaGraph.pool):
                self.function()
        elif self.graph or self.captures():
            assert self.graph
            self.graph.replay()
        else:
            self.function()

    def captures(self, again: bool = True) -> bool:
        """Capture the function; if that fails, warn, return False and never try again."""
        try:
            self.graph = self.capture()
        except RuntimeError as error:
            if not out_of_memory(error):
                # torch, up to 2.13, keeps the memory of such a capture until the process ends.
                first, _, _ = str(error).partition("\n")
                warnings.warn(
                    "sampling goes on without CUDA graphs, slower and with less memory: restart "
                    f"with --cuda-graphs false ({first})",
                    stacklevel=2,
                )
                CudaGraph.failed = True
                self.used = False
            elif not again:
                # Fewer rollouts at once may have room.
                raise
        if self.graph or not self.used:
            return self.used
        # A capture may not free what others have cached. It has run nothing.
        torch.cuda.empty_cache()
        return self.captures(again=False)

    def capture(self) -> torch.cuda.CUDAGraph:
        """Record the function, which runs nothing."""
        graph = torch.cuda.CUDAGraph()
        # `torch.cuda.graph` would also empty the memory that training keeps.
        with self.side_stream():
            graph.capture_begin(CudaGraph.pool.id, capture_error_mode="thread_local")
            try:
                self.function()
            except BaseException:
                # A stream that is left in a capture could run nothing.
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Run on another stream: the default stream cannot be captured."""
        assert self.side
        self.side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.side):
                yield
        # After an error too: what is freed then may still be written to.
        finally:
            torch.cuda.current_stream().wait_stream(self.side)


def forget_graphs() -> None:
    """Free the memory of graphs, which have ended: it is for the gradient, or another model."""
    CudaGraph.pool = None


def out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out, on a GPU or on a CPU: that of torch's allocator, which alone raises a
    class of its own, in the driver, in the set-up of a CUDA graph or for a handle of cuBLAS.
    """
    words = (
        "CUDA error: out of memory",
        "CUDA driver error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "can't allocate memory",
    )
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


class Late:
    """Counts of a GPU that the host reads a search later, when they have long arrived."""

    def __init__(self):
        self.counts: Tensor | None = None
        self.arrived: torch.cuda.Event | None = None

    def start(self, alive: Tensor) -> None:
        """Begin to copy how many rows of each group are alive (G, M)."""
        if alive.is_cuda:
            # Into pinned memory, which nothing waits for.
            self.counts = alive.sum(1).to("cpu", non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def read(self, alive: Tensor) -> Tensor | None:
        """Return what was started last (G,), None at first; on a CPU the counts of now."""
        if not alive.is_cuda:
            return alive.sum(1)
        if self.arrived:
            self.arrived.synchronize()
        return self.counts


def on_host(*values: Tensor) -> list[Tensor]:
    """Copy tensors of a GPU to the host with one wait for all of them."""
    copies = [value.to("cpu", non_blocking=True) for value in values]
    if values[0].is_cuda:
        torch.cuda.current_stream().synchronize()
    return copies
