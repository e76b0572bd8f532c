"""CUDA graphs, so that a GPU does not wait for the host."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class CudaGraph:
    """A function that only reads and writes tensors, called once per token.

    On a GPU the first call with a shape runs the function, the second one captures it in a CUDA
    graph, and later ones replay the graph: one launch for all kernels. A graph lives as long as its
    shape, which is tens of tokens, so that no address has to outlive a rollout. On a CPU every call
    runs the function.
    """

    def __init__(self, function: Callable[[], None], device: torch.device):
        self.function = function
        self.on_gpu = device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.shape: torch.Size | None = None
        self.captured = False
        if self.on_gpu:
            self.side = torch.cuda.Stream()

    def __call__(self, shape: torch.Size) -> None:
        """Run the function once; another shape means other tensors."""
        if not self.on_gpu:
            self.function()
        elif shape != self.shape:
            # Not captured, because libraries set themselves up in their first call.
            self.shape = shape
            self.captured = False
            with self.side_stream():
                self.function()
        else:
            if not self.captured:
                self.graph = self.capture()
                self.captured = True
            assert self.graph
            self.graph.replay()

    def capture(self) -> torch.cuda.CUDAGraph:
        """Record the function, which runs nothing."""
        graph = torch.cuda.CUDAGraph()
        # The old graph stays until the new one has taken over its memory. `torch.cuda.graph` would
        # also empty the memory that training keeps.
        memory = self.graph.pool() if self.graph else None
        with self.side_stream():
            graph.capture_begin(memory, capture_error_mode="thread_local")
            self.function()
            graph.capture_end()
        return graph

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Run on a stream of its own: the default stream cannot be captured."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield
        torch.cuda.current_stream().wait_stream(self.side)
