"""A step of sampling asks the host for nothing, so that a GPU can repeat it; tokens are drawn in
two levels.
"""

import warnings
from unittest import mock

import pytest
import tiny
import torch
from questions import Questions
from tensors import seeded

from maxrl.sampling import sampler
from maxrl.sampling.cuda import CudaGraph
from maxrl.sampling.drawing import BLOCK, distribution, draw, inverse_cdf
from maxrl.sampling.sampler import decode_step, noise, prefill
from maxrl.tasks import Example


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize("vocabulary", [32, 2 * BLOCK])
def test_a_step_asks_the_host_for_nothing(low, family, vocabulary):
    """The second one, when the casts of weights are kept; of prompts of one length or several."""
    model = tiny.model(torch.float32, model_type=family, head_dim=8, vocab_size=vocabulary)
    for lengths in ((9, 9, 9), (9, 5, 1)):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=low):
            state = prefill(model, tiny.prompts(lengths), noise(0, 0, range(3), 4, 9))
            state.cache.reserve(9)
            decode_step(model, state)
            with Questions() as questions:
                decode_step(model, state)
        assert not questions.asked
        assert state.log_probs[:, 1].all()
        assert not state.log_probs[:, 2:].any()


def distributions(V):
    """Rows (5, V) whose sums are exact in every precision, multiples of 1 / 4096: of random, of
    rare tokens, of one, of all.
    """
    generator = seeded(V)
    rows = torch.zeros(5, V, dtype=torch.float64)
    every = torch.arange(V)
    for row, tokens in zip(rows, (every, every[3::16], every[:1], every[-1:])):
        drawn = tokens[torch.randint(len(tokens), (4096,), generator=generator)]
        row += torch.bincount(drawn, minlength=V) / 4096
    rows[4, : min(V, 4096) // 32 * 32] = 1.0
    return rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("V, count", [(32, 100_000), (200, 100_000), (49_152, 200)])
def test_two_levels_draw_the_token_of_one(V, count, dtype):
    """Any uniform gives the same token, which has a probability."""
    corners = torch.tensor([0.0, 2**-53, 0.25, 0.5, 1 - 2**-52, 1 - 2**-53], dtype=torch.float64)
    uniforms = torch.rand(count, dtype=torch.float64, generator=seeded())
    uniforms = torch.cat([corners, uniforms])
    for p in distributions(V).to(dtype).float():
        p = p.to(torch.promote_types(dtype, torch.float32))
        drawn = draw(p.expand(len(uniforms), V), uniforms)
        assert torch.equal(drawn, inverse_cdf(p, uniforms))
        assert (p[drawn] > 0).all()


def test_two_levels_of_any_probabilities():
    """Of logits as a model has them: in float64 the same tokens, in float32 their neighbours at
    most where sums are rounded.
    """
    logits = torch.randn(2000, 1000, dtype=torch.float64, generator=seeded(1)) * 3
    uniforms = noise(0, 0, [0], 1, 2000).flatten()
    p = distribution(logits, top_p=0.999).exp()
    expected = inverse_cdf(p, uniforms[:, None]).squeeze(1)
    assert torch.equal(draw(p, uniforms), expected)
    drawn = draw(p.float(), uniforms)[:, None]
    chance = p.gather(1, drawn) / p.sum(1, keepdim=True)
    assert (chance > 0).all()
    beyond = p.cumsum(1).gather(1, drawn) / p.sum(1, keepdim=True) - uniforms[:, None]
    assert (beyond > -1e-5).all()
    assert (beyond - chance < 1e-5).all()


def test_at_the_edge_of_a_block():
    """Sums of blocks are rounded: what is left of a point may be below 0 or past the last token of
    its block that can be.
    """
    p = torch.rand(4000, 3, BLOCK, generator=seeded(2))
    p[..., :2] = p[..., -2:] = 0
    sums = p.sum(-1).cumsum(-1, dtype=torch.float64)
    for step in (-1e-15, 0.0, 1e-15):
        uniforms = sums[:, 0] / sums[:, -1] + step
        drawn = draw(p.flatten(1), uniforms)
        assert (p.flatten(1).gather(1, drawn[:, None]) > 0).all()


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("fails", ["", "in the capture", "at its end"])
def test_graphs_and_their_failure_change_no_token(wanted, fails, monkeypatch):
    """On a stand-in for a GPU, which runs nothing during a capture. After one failure nothing more
    is captured.
    """
    calls = []

    class Graph(mock.MagicMock):
        def capture_begin(self, *pool, **mode):
            calls.append("capture")

        def capture_end(self):
            calls.append("end")
            if fails == "at its end":
                raise RuntimeError("nothing was captured\nand more")

        def replay(self):
            calls.append("replay")
            self.step()

    def step(*arguments, **sampling):
        if calls[-1:] != ["capture"]:
            decode_step(*arguments, **sampling)
        elif fails:
            raise RuntimeError("not permitted when the stream is capturing\nand more")
        Graph.step = lambda self: decode_step(*arguments, **sampling)

    def responses():
        policy = tiny.policy(tiny.model(), cuda_graphs=wanted)
        return policy.rollout([Example("<bos> UP LEFT", "")] * 3, 4).tokens.tolist()

    expected = responses()
    gpu = torch.device("cuda")
    monkeypatch.setattr(CudaGraph, "failed", False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    for name in ("Stream", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())
    monkeypatch.setattr(sampler, "CudaGraph", lambda step, _, on: CudaGraph(step, gpu, on))
    monkeypatch.setattr(sampler, "decode_step", step)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert responses() == responses() == expected
    captures = calls.count("capture")
    assert captures == calls.count("end")
    assert bool(captures) == wanted
    assert ("replay" in calls) == (wanted and not fails)
    if fails:
        assert captures == len(warned) == wanted


def test_memory_that_runs_out_in_a_capture(monkeypatch):
    """It is reported as what it is, so that fewer rollouts are tried and graphs stay in use."""
    for name in ("CUDAGraph", "Stream", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())
    # A capture in which something has failed cannot be ended either.
    torch.cuda.CUDAGraph().capture_end.side_effect = RuntimeError("nothing was captured")
    monkeypatch.setattr(CudaGraph, "failed", False)
    full = mock.Mock(side_effect=[None, torch.OutOfMemoryError("full")])
    graph = CudaGraph(full, torch.device("cuda"))
    graph(torch.Size([1]))
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        graph(torch.Size([1]))
    assert not CudaGraph.failed
