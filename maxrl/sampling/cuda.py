"""CUDA graphs and asynchronous copies, so that a GPU does not wait for the host.

On a CPU both classes do their work immediately.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class CudaGraph:
    """A step that only reads and writes tensors, called once per token.

    On a GPU the first call with a shape runs the step, the second one captures it in a CUDA graph,
    and later ones replay the graph: one launch for all kernels. A graph lives as long as its shape,
    which is tens of tokens, so that no address has to outlive a rollout.
    """

    def __init__(self, step: Callable[[], None], device: torch.device):
        self.step = step
        self.on_gpu = device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.shape: torch.Size | None = None
        self.captured = False
        if self.on_gpu:
            self.side = torch.cuda.Stream()

    def __call__(self, shape: torch.Size) -> None:
        """Run the step once; another shape means other tensors."""
        if not self.on_gpu:
            self.step()
        elif shape != self.shape:
            # Not captured, because libraries set themselves up in their first call.
            self.shape = shape
            self.captured = False
            with self.side_stream():
                self.step()
        else:
            if not self.captured:
                self.graph = self.capture()
                self.captured = True
            assert self.graph
            self.graph.replay()

    def capture(self) -> torch.cuda.CUDAGraph:
        """Record the step, which runs nothing."""
        graph = torch.cuda.CUDAGraph()
        # The old graph stays until the new one has taken over its memory. `torch.cuda.graph` would
        # also empty the memory that training keeps.
        memory = self.graph.pool() if self.graph else None
        with self.side_stream():
            graph.capture_begin(memory, capture_error_mode="thread_local")
            self.step()
            graph.capture_end()
        return graph

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Run on a stream of its own: the default stream cannot be captured."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield
        torch.cuda.current_stream().wait_stream(self.side)


class AsyncCopy:
    """Copies small tensors to the host without waiting: from a GPU each call returns the tensor of
    the call before, or None.
    """

    def __init__(self, device: torch.device):
        self.on_gpu = device.type == "cuda"
        self.pending: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor | None:
        if not self.on_gpu:
            return numbers
        before = self.pending
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self.pending = host, event
        if before is None:
            return None
        host, event = before
        event.synchronize()
        return host

    def forget(self) -> None:
        """Drop the pending copy, which is of a tensor with another shape."""
        self.pending = None
