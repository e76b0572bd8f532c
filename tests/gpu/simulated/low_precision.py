"""What calls of a model multiply under bfloat16 autocast on the simulated device, by family, and
which kernel of attention a GPU would take.
"""

import torch
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from maxrl.learning.packing import micro_batches
from maxrl.learning.policy import TokenLogProbs
from maxrl.sampling.sampler import decode_step, noise, prefill
from tests.bench.bench_turns import whole_biases
from tests.gpu.simulated import cuda
from tests.helpers import tiny

FAMILIES = ("qwen2", "llama", "qwen3")
PROMPTS = {"one length": (9, 9, 9), "ragged": (9, 5, 4)}


def kernel(q, k, mask) -> str:
    """Which one a GPU takes, by torch's documentation: flash in half precision and without a mask,
    "efficient" without grouped heads, else that which stores all weights.
    """
    if q.dtype.itemsize == 2 and (mask is None or isinstance(mask, CausalBias)):
        return "flash"
    return "efficient" if q.shape[1] == k.shape[1] else "math"


class Attention(TorchFunctionMode):
    """Notes of which type queries, keys and values are: what is below differs on a GPU."""

    def __init__(self):
        super().__init__()
        self.types = set()
        self.kernels = set()

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            self.types |= {str(each.dtype) for each in arguments[:3]}
            self.kernels.add(kernel(*arguments[:2], options.get("attn_mask")))
        return function(*arguments, **options)


class Products(TorchDispatchMode):
    """Notes the types of matrix products, and of batched ones."""

    def __init__(self):
        super().__init__()
        self.types = {"mm": set(), "bmm": set()}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        name = function.overloadpacket.__name__.replace("addmm", "mm").replace("baddbmm", "bmm")
        if name in self.types:
            self.types[name].add(str(result.dtype))
        return result


def look(call) -> dict:
    """The types of a call's products, and its copies between host and device."""
    cuda.taken()
    with whole_biases(), Attention() as attention, Products() as products:
        call()
    return {
        "copies": [kind for kind, *_ in cuda.taken().elements()],
        "products": sorted(products.types["mm"] | attention.types),
        "batched": sorted(products.types["bmm"]),
        "kernels": sorted(attention.kernels),
    }


def calls(family: str, lengths: tuple) -> dict:
    """What a model of a family does in each call, for prompts of these lengths."""
    model, reference = (
        tiny.model(torch.float32, model_type=family, head_dim=8).to("cuda") for _ in range(2)
    )
    rollouts = tiny.rollouts(lengths)
    rollouts.log_probs = None
    (batch,) = micro_batches(rollouts, range(3), 10**6, torch.device("cuda"))
    penalised = tiny.policy(model, autocast=True, beta=0.1, reference=reference)
    update = look(lambda: penalised.backward(rollouts, torch.ones(3, 4)))
    whole = look(lambda: TokenLogProbs(model)(batch, True))
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        state = prefill(model, tiny.prompts(lengths), noise(0, 0, range(3), 4, 9))
        state.cache.reserve(9)
        # The first one behind ragged prompts tries a kernel, which this device has not.
        TokenLogProbs(model)(batch)
        return {
            "encode": look(lambda: model.encode(batch.prefix)),
            "step": look(lambda: decode_step(model, state)),
            "micro-batch": look(lambda: TokenLogProbs(model)(batch, True)),
            "update": update,
            "in float32": whole,
        }


def every_call() -> dict:
    """What is seen of each family and kind of prompts."""
    torch.set_default_dtype(torch.float32)
    return {
        f"{family}, {kind}": calls(family, lengths)
        for family in FAMILIES
        for kind, lengths in PROMPTS.items()
    }
