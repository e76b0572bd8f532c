"""A simulated NCCL for the device of cuda.py: it takes contiguous tensors of the device alone.

    cuda.install(); nccl.install()

`init_process_group("nccl")` makes gloo do the work on the same bytes. A tensor of the host raises
as with NCCL; so do a collective in a process that has been forked and a device_id that is no CUDA
device. A collective that is another one on another rank, or to which another rank does not come
within a minute, raises where NCCL hangs. Every collective is counted in `cuda.EVENTS` by the line
that asked for it, so that ranks can be compared. It cannot see what is asynchronous in NCCL: order
on streams, time-outs, the watchdog, errors that abort.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.futures import Future

from tests.gpu.simulated import cuda

MINUTE = timedelta(minutes=1)
ALL_REDUCE, BROADCAST = dist.AllreduceOptions(), dist.BroadcastOptions()


def work(value):
    future = Future()
    future.set_result(value)
    return torch._C._distributed_c10d._create_work_from_future(future)


class Group(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.mine, self.all, self.owner = rank, size, os.getpid()
        self.store, self.number = store, 0
        self.inner = dist.ProcessGroupGloo(store, rank, size, timeout=min(timeout, MINUTE))

    def size(self):
        return self.all

    def rank(self):
        return self.mine

    @property
    def _device_types(self):
        return [torch.device("cuda")]

    def getBackendName(self):
        return "simulated"

    @property
    def pg_name(self):
        return c10d._world.pg_names[self]

    group_name = pg_name

    def agree(self, asked):
        """Raise unless every rank of the group asks for the same collective."""
        self.number += 1
        self.store.set(f"{self.number} {self.mine}", asked)
        for rank in range(self.all):
            self.store.wait([f"{self.number} {rank}"], MINUTE)
            other = self.store.get(f"{self.number} {rank}").decode()
            if other != asked:
                raise RuntimeError(f"rank {self.mine} asks for {asked}, rank {rank} for {other}")

    def taken(self, name, tensors):
        """Aliases on the host of tensors that NCCL would take."""
        if os.getpid() != self.owner:
            raise RuntimeError("NCCL in a forked process")
        asked = f"{name} {sum(t.nbytes for t in tensors)} bytes"
        cuda.event("collective", asked)
        hosts = self.hosts(name, tensors)
        self.agree(asked)
        return hosts

    def hosts(self, name, tensors):
        """The same without a count, of the parts that only one rank has."""
        for tensor in tensors:
            if not tensor.is_cuda:
                where = tensor.device.type
                raise RuntimeError(f"No backend type associated with device type {where} ({name})")
            if not tensor.is_contiguous() or tensor.is_sparse:
                raise ValueError(f"Tensors must be contiguous ({name})")
        return [torch.ops.simulated.host(tensor) for tensor in tensors]

    def reduced(self, hosts, op):
        options = dist.AllreduceOptions()
        average = op == dist.ReduceOp.AVG
        options.reduceOp = dist.ReduceOp.SUM if average else op
        for host in hosts:
            self.inner.allreduce([host], options).wait()
            if average:
                host.div_(self.all)

    def allreduce(self, tensors, opts=ALL_REDUCE):
        self.reduced(self.taken("allreduce", tensors), opts.reduceOp)
        return work(tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors, opts=BROADCAST):
        self.inner.broadcast(self.taken("broadcast", tensors), opts).wait()
        return work(tensors)

    def allgather(self, outputs, inputs, opts=None):
        outs = self.taken("allgather", outputs[0])
        self.inner.allgather([outs], self.hosts("allgather", inputs)).wait()
        return work(outputs)

    def _allgather_base(self, output, input, opts=None):
        parts = output.view(-1).chunk(self.all)
        self.allgather([list(parts)], [input.reshape(-1)])
        return work([output])

    def _reduce_scatter_base(self, output, input, opts):
        (out,) = self.hosts("reduce_scatter", [output])
        whole = self.taken("reduce_scatter", [input])[0].clone()
        self.reduced([whole], opts.reduceOp)
        out.copy_(whole.view(-1).chunk(self.all)[self.mine].view_as(out))
        return work([output])

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        for output, input in zip(outputs, inputs):
            self._allgather_base(output, input)
        return work(outputs)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        for output, input in zip(outputs, inputs):
            self._reduce_scatter_base(output, input, opts)
        return work(outputs)

    # The names before torch 2.13.
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def scatter(self, outputs, inputs, opts):
        out = self.taken("scatter", outputs)
        hosts = [self.hosts("scatter", parts) for parts in inputs]
        self.inner.scatter(out, hosts, opts).wait()
        return work(outputs)

    def barrier(self, opts=None):
        cuda.event("collective", "barrier")
        self.agree("barrier")
        self.inner.barrier().wait()
        return work(None)


def install():
    dist.Backend.register_backend("simulated", Group, devices=["cuda"])
    start, name = dist.init_process_group, dist.get_backend

    def init_process_group(backend=None, *words, device_id=None, **options):
        if backend == "nccl":
            backend = "cuda:simulated"
            if device_id is not None and torch.device(device_id).type != "cuda":
                raise ValueError(f"device_id {device_id} is no CUDA device")
        start(backend, *words, **options)
        dist.group.WORLD.bound_device_id = device_id and torch.device(device_id)

    def get_backend(group=None):
        found = name(group)
        return "nccl" if "simulated" in found else found

    torch.cuda.nccl.version = lambda: (2, 28, 0)
    # DDP's statistics need a timer of the device.
    dist.Logger.set_runtime_stats_and_log = lambda logger: None
    dist.init_process_group = c10d.init_process_group = init_process_group
    dist.get_backend = c10d.get_backend = get_backend
