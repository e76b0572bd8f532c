"""What a GPU needs so as not to wait for the host: steps that it repeats by itself, and numbers that are read later.

On a CPU both do at once what they are asked.
"""

import torch


class Repeated:
    """A step that reads and writes tensors alone, called once per token.

    On a GPU the first call of each shape runs it as it is, the second one captures it in a CUDA graph, and from then on the
    graph is replayed: one launch for all its kernels. Results stay in tensors that the step writes in place. A graph lives as
    long as its shape, tens of tokens, and costs about two steps to make: so nothing needs an address that outlives a rollout.
    """

    def __init__(self, step, device):
        self.step = step
        self.on_gpu = device.type == "cuda"
        self.graph = self.shape = None
        if self.on_gpu:
            self.pool = torch.cuda.graph_pool_handle()
            self.side = torch.cuda.Stream()

    def __call__(self, shape):
        """Run the step once. With another shape than before it works on other tensors."""
        if not self.on_gpu:
            self.step()
        elif shape != self.shape:
            # Outside the capture, because libraries set themselves up in their first call.
            self.graph, self.shape = None, shape
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.step()
            torch.cuda.current_stream().wait_stream(self.side)
        else:
            if self.graph is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self.pool):
                    self.step()
                self.graph = graph
            self.graph.replay()


class Late:
    """Brings small tensors to the host; from a GPU each call returns what the call before has asked for, or None."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"
        self.asked = None

    def __call__(self, numbers):
        if not self.on_gpu:
            return numbers
        before, host = self.asked, torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
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
