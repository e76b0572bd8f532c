"""CUDA graphs and asynchronous copies, so that a GPU does not wait for the host.

On a CPU both classes do their work immediately.
"""

import contextlib

import torch


class Repeated:
    """A step that only reads and writes tensors, called once per token.

    On a GPU the first call with a shape runs the step, the second one captures it in a CUDA graph,
    and later ones replay the graph: one launch for all kernels. A graph lives as long as its shape,
    which is tens of tokens, so that no address has to outlive a rollout.
    """

    def __init__(self, step, device):
        self.step = step
        self.on_gpu = device.type == "cuda"
        self.graph = self.shape = None
        self.captured = False
        if self.on_gpu:
            self.side = torch.cuda.Stream()

    def __call__(self, shape):
        """Run the step once; another shape means other tensors."""
        if not self.on_gpu:
            self.step()
        elif shape != self.shape:
            # Outside the capture, because libraries set themselves up in their first call.
            self.shape = shape
            self.captured = False
            with self.aside():
                self.step()
        else:
            if not self.captured:
                self.capture()
            self.graph.replay()

    def capture(self):
        """Record the step, which runs nothing."""
        graph = torch.cuda.CUDAGraph()
        # The old graph stays until the new one has taken over its memory. `torch.cuda.graph` would
        # do the same and empty the memory that training keeps.
        memory = self.graph.pool() if self.graph else None
        with self.aside():
            graph.capture_begin(memory, capture_error_mode="thread_local")
            self.step()
            graph.capture_end()
        self.graph = graph
        self.captured = True

    @contextlib.contextmanager
    def aside(self):
        """On a stream of its own: the usual one cannot be captured."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield
        torch.cuda.current_stream().wait_stream(self.side)


class Late:
    """Brings small tensors to the host; from a GPU each call returns what the call before has asked
    for, or None.
    """

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"
        self.asked = None

    def __call__(self, numbers):
        if not self.on_gpu:
            return numbers
        before = self.asked
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self.asked = host, event
        if before is None:
            return None
        before[1].synchronize()
        return before[0]

    def forget(self):
        """Drop what was asked for: it was about tensors of another shape."""
        self.asked = None
