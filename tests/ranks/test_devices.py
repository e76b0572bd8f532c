"""What a process sets of its device: memory, precision, and no group if it is alone."""

import pytest
import torch

from maxrl.system import distributed


def test_peak_memory_of_a_gpu_is_the_steps(monkeypatch):
    """GiB since it was asked last; a process alone knows its own."""
    peaks = [3 * 2**30, 2**29]
    device = torch.device("cuda", 0)
    known = {device: peaks}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda where: known[where][0])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda where: 2 * known[where][0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda where: peaks.pop(0))
    found = [distributed.peak_memory(device)["memory/peak_gb"] for _ in range(2)]
    assert found == [3.0, 0.5]
    assert not peaks


FLAGS = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")


@pytest.mark.parametrize("has", [(True, False), (False, True), (False, False), ()])
def test_bfloat16_on_a_cpu_is_decided_by_its_flags(has, monkeypatch):
    """A torch that does not ask for a flag (the last case) takes float32.

    What is asked for by name is never changed.
    """
    for name, value in zip(FLAGS, has or (None, None)):
        monkeypatch.setattr(torch.cpu, name, lambda value=value: value, raising=False)
        if not has:
            monkeypatch.delattr(torch.cpu, name)
    cpu = torch.device("cpu")
    assert distributed.use_bfloat16("auto", cpu) == any(has)
    assert distributed.use_bfloat16("bfloat16", cpu)
    assert not distributed.use_bfloat16("float32", cpu)


ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
SETTING = "_accelerator_setAllocatorSettings"


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU; what its allocator is told."""
    for name in (*ALLOCATOR, "CUBLAS_WORKSPACE_CONFIG", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    asked = []
    monkeypatch.setattr(torch._C, SETTING, asked.append, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    yield asked
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("deterministic", [True, False])
def test_settings_of_a_gpu(gpu, deterministic):
    assert distributed.setup("auto", deterministic).type == "cuda"
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert torch.backends.cudnn.benchmark is not deterministic
    assert gpu == ["expandable_segments:True"]


@pytest.mark.parametrize("numbers", ["0 1 0", "3 1 0", "3 8 3", "7 8 7", "7 4 3"])
def test_a_rank_takes_a_gpu_that_it_sees(gpu, monkeypatch, numbers):
    """A task of a scheduler may see all GPUs of its node, or its own alone: the number of the rank,
    how many it sees, and which it takes."""
    local, seen, index = numbers.split()
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(seen))
    assert distributed.setup("cuda").index == int(index)


@pytest.mark.parametrize("name", ALLOCATOR)
def test_what_the_user_has_set_stays(gpu, monkeypatch, name):
    monkeypatch.setenv(name, "max_split_size_mb:64")
    distributed.setup("cuda")
    assert not gpu


def test_one_process_needs_no_group():
    assert (distributed.world_size(), distributed.rank()) == (1, 0)
    assert distributed.gathered([2.0, torch.tensor(3)]).tolist() == [[2, 3]]
    module = torch.nn.Linear(2, 2)
    assert distributed.data_parallel(module) is module
