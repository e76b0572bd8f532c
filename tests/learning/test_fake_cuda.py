"""What a GPU would be asked to do, without one: fake tensors of its device in encode, a decode step
and a micro-batch.

torch's CPU build knows no CUDA device until a guard for one is registered, which a line of C++
does; without a compiler the tests are skipped. All of it is in a process of its own (python
tests/learning/test_fake_cuda.py), since that cannot be taken back. What it sees are devices, types
and shapes: that everything lies on the GPU, in bfloat16 where products are, and that nothing has to
wait for the host. An item of a fake tensor, or an index by its truth, is an error of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>);
"""
FAMILIES = ("qwen2", "llama", "qwen3")


def watch() -> dict:
    """In the process with the guard: of each call the copies between host and device, and where and
    of what type things are.
    """
    import tiny
    import torch
    from bench_turns import whole_biases
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
    from torch.utils.cpp_extension import load

    from maxrl.models import transformer
    from maxrl.models.transformer import Transformer, TransformerConfig
    from maxrl.packing import micro_batches
    from maxrl.policy import TokenLogProbs
    from maxrl.sampling.sampler import decode_step, noise, prefill

    try:
        source = Path(os.environ["TORCH_EXTENSIONS_DIR"], "guard.cpp")
        source.write_text(GUARD)
        load("fake_cuda_guard", [str(source)], extra_cflags=["-O0"], is_python_module=False)
    except Exception as error:
        return {"skip": f"no CUDA guard without a compiler and ninja: {str(error).splitlines()[0]}"}

    class Attention(TorchFunctionMode):
        """Notes of which type the queries, keys and values are; what is below is decided otherwise
        on a GPU.
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
            if (
                len({tensor.device.type for tensor in tensors if tensor.dim() or name == "copy_"})
                > 1
            ):
                self.copies.append(name)
            if name in ("mm", "addmm"):
                self.products.add(str(result.dtype))
            if name in ("bmm", "baddbmm"):
                self.batched.add(str(result.dtype))
            return result

    def fake(value, name=""):
        """What was made on the host, with all its tensors on the device but a micro-batch's lengths
        of prompts.
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

    def look(call) -> dict:
        with Attention() as attention, Kernels() as seen:
            results = call()
        return {
            "copies": seen.copies,
            "devices": sorted({str(each.device) for each in results}),
            "products": sorted(seen.products | attention.types),
            "batched": sorted(seen.batched),
        }

    def on_device(mask_of_the_host):
        """The mask of a micro-batch is made on the host, from the lengths of prompts that lie
        there.
        """

        def mask(lengths, Lp, L, device="cpu"):
            with _disable_current_modes():
                made = mask_of_the_host(lengths, Lp, L)
            return (
                made
                if type(made) is not torch.Tensor
                else torch.empty(made.shape, dtype=made.dtype, device=device)
            )

        return mask

    # torch.autocast would ask for a GPU.
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    transformer.prefix_mask = on_device(transformer.prefix_mask)
    found = {}
    for family in FAMILIES:
        for kind, lengths in {"one length": (9, 9, 9), "ragged": (9, 5, 4)}.items():
            config = TransformerConfig.from_hf(tiny.SIZES | {"model_type": family, "head_dim": 8})
            (batch,) = micro_batches(tiny.rollouts(lengths), range(3), 10**6)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                state = prefill(
                    Transformer(config), tiny.prompts(lengths), noise(0, 0, range(3), 4, 9)
                )
            state.cache.reserve(9)
            with FakeTensorMode(allow_non_fake_inputs=True), whole_biases():
                with torch.device("cuda"):
                    model = Transformer(config)
                batch, state = fake(batch), fake(state)
                found[f"micro-batch, {family}, {kind}"] = look(
                    lambda: TokenLogProbs(model)(batch, True)
                )
                with torch.no_grad():
                    found[f"encode, {family}, {kind}"] = look(
                        lambda: sum(map(list, model.encode(batch.prefix)), [])
                    )

                    def step():
                        decode_step(model, state)
                        return [
                            state.current,
                            state.tokens,
                            state.log_probs,
                            state.entropies,
                            *state.cache.own,
                        ]

                    found[f"step, {family}, {kind}"] = look(step)
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    environment = os.environ | {
        "TORCH_EXTENSIONS_DIR": str(tmp_path_factory.mktemp("guard")),
        "MAX_JOBS": "1",
    }
    root = Path(__file__).resolve().parents[2]
    environment["PYTHONPATH"] += f"{os.pathsep}{root / 'tests/bench'}"
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    if "skip" in found:
        pytest.skip(found["skip"])
    return found


@pytest.mark.parametrize("kind", ["one length", "ragged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_is_on_the_device_in_bfloat16(seen, family, kind):
    """Products and what attention gets. Of attention's own products those of a step are ours."""
    for call in ("encode", "step", "micro-batch"):
        row = seen[f"{call}, {family}, {kind}"]
        assert row["devices"] == ["cuda:0"] and row["products"] == ["torch.bfloat16"], call
    assert seen[f"step, {family}, {kind}"]["batched"] == ["torch.bfloat16"]


@pytest.mark.parametrize("kind", ["one length", "ragged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_waits_for_the_host(seen, family, kind):
    """A micro-batch brings the lengths of its prompts, once for all layers; and for ragged ones a
    mask, which `watch` made.
    """
    assert (
        seen[f"encode, {family}, {kind}"]["copies"]
        == seen[f"step, {family}, {kind}"]["copies"]
        == []
    )
    assert seen[f"micro-batch, {family}, {kind}"]["copies"] == ["_to_copy"]


if __name__ == "__main__":
    print(json.dumps(watch()))
