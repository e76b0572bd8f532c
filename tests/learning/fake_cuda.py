"""What a GPU would be asked to do, without one: fake tensors of its device in encode, a decode step
and a micro-batch. Prints what test_fake_cuda.py reads, as JSON.

torch's CPU build knows no CUDA device until a guard for one is registered, which a line of C++
does; it cannot be taken back, so that all of it is in a process of its own. What it sees are
devices, types and shapes: that everything lies on the GPU, in bfloat16 where products are, and that
nothing has to wait for the host. An item of a fake tensor, or an index by its truth, is an error of
its own.
"""

import json
import os
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.cpp_extension import load

from maxrl.models import transformer
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.packing import micro_batches
from maxrl.policy import TokenLogProbs
from maxrl.sampling.sampler import decode_step, noise, prefill
from tests.bench.bench_turns import whole_biases
from tests.helpers import tiny

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>);
"""
FAMILIES = ("qwen2", "llama", "qwen3")
PROMPTS = {"one length": (9, 9, 9), "ragged": (9, 5, 4)}


class Attention(TorchFunctionMode):
    """Notes of which type the queries, keys and values are; what is below is decided otherwise on a
    GPU.
    """

    def __init__(self):
        self.types = set()

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.nn.functional.scaled_dot_product_attention:
            self.types |= {str(each.dtype) for each in arguments[:3]}
        return function(*arguments, **(options or {}))


class Kernels(TorchDispatchMode):
    """Notes what goes from the host to the device or back, and the types of products."""

    def __init__(self):
        super().__init__()
        self.copies = []
        self.products = set()
        self.batched = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        tensors = [value for value in (*arguments, result) if isinstance(value, torch.Tensor)]
        name = function.overloadpacket.__name__
        places = {t.device.type for t in tensors if t.dim() or name == "copy_"}
        if len(places) > 1:
            self.copies.append(name)
        if name in ("mm", "addmm"):
            self.products.add(str(result.dtype))
        if name in ("bmm", "baddbmm"):
            self.batched.add(str(result.dtype))
        return result


def fake(value, name=""):
    """What was made on the host, with all its tensors on the device but a micro-batch's lengths of
    prompts.
    """
    if name == "prefix_lengths":
        return value
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="cuda")
    if isinstance(value, list | tuple):
        return type(value)(map(fake, value))
    for name, inner in vars(value).items() if hasattr(value, "__dict__") else ():
        setattr(value, name, fake(inner, name))
    return value


def prefix_mask(lengths, Lp, L, on_device, real=transformer.prefix_mask):
    """Whether there is a mask is decided on the host, from the lengths of prompts."""
    with _disable_current_modes():
        made = real(lengths, Lp, L, lengths)
    return fake(made) if type(made) is torch.Tensor else made


def look(call) -> dict:
    """The copies between host and device of a call, and where and of what type things are."""
    with Attention() as attention, Kernels() as seen:
        results = call()
    return {
        "copies": seen.copies,
        "devices": sorted({str(each.device) for each in results}),
        "products": sorted(seen.products | attention.types),
        "batched": sorted(seen.batched),
    }


def calls(family: str, lengths: tuple) -> dict:
    """What a model of a family does in each call, for prompts of these lengths."""
    config = TransformerConfig.from_hf(tiny.SIZES | {"model_type": family, "head_dim": 8})
    (batch,) = micro_batches(tiny.rollouts(lengths), range(3), 10**6)
    host = Transformer(config)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        state = prefill(host, tiny.prompts(lengths), noise(0, 0, range(3), 4, 9))
    state.cache.reserve(9)
    with FakeTensorMode(allow_non_fake_inputs=True), whole_biases():
        with torch.device("cuda"):
            model = Transformer(config)
        batch = fake(batch)
        state = fake(state)

        @torch.no_grad()
        def encode():
            return sum(map(list, model.encode(batch.prefix)), [])

        @torch.no_grad()
        def step():
            decode_step(model, state)
            results = (state.current, state.tokens, state.log_probs, state.entropies)
            return [*results, *state.cache.own]

        return {
            "micro-batch": look(lambda: TokenLogProbs(model)(batch, True)),
            "encode": look(encode),
            "step": look(step),
        }


def main() -> dict:
    try:
        source = Path(os.environ["TORCH_EXTENSIONS_DIR"], "guard.cpp")
        source.write_text(GUARD)
        load("fake_cuda_guard", [str(source)], extra_cflags=["-O0"], is_python_module=False)
    except Exception as error:
        return {"skip": f"no CUDA guard without a compiler and ninja: {str(error).splitlines()[0]}"}
    # torch.autocast would ask for a GPU.
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    transformer.prefix_mask = prefix_mask
    return {
        f"{family}, {kind}": calls(family, lengths)
        for family in FAMILIES
        for kind, lengths in PROMPTS.items()
    }


if __name__ == "__main__":
    print(json.dumps(main()))
