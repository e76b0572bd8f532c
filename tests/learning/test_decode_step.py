"""A step of sampling asks the host for nothing, so that a GPU can repeat it; tokens are drawn in
two levels.
"""

from unittest import mock

import pytest
import torch

from maxrl.sampling import sampler
from maxrl.sampling.cuda import CudaGraph
from maxrl.sampling.drawing import BLOCK, distribution, draw, inverse_cdf
from maxrl.sampling.sampler import decode_step, noise, prefill
from tests.helpers import tiny
from tests.helpers.questions import Questions
from tests.helpers.tensors import F64, normal, seeded


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize("vocabulary", [32, 2 * BLOCK])
@pytest.mark.parametrize("lengths", [(9, 9, 9), (9, 5, 1)])
@torch.no_grad()
def test_a_step_asks_the_host_for_nothing(low, family, vocabulary, lengths):
    """The second one, when the casts of weights are kept; of prompts of one length or several."""
    model = tiny.model(torch.float32, model_type=family, head_dim=8, vocab_size=vocabulary)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
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
    rows = torch.zeros(5, V, dtype=F64)
    every = torch.arange(V)
    for row, tokens in zip(rows, (every, every[3::16], every[:1], every[-1:])):
        drawn = tokens[torch.randint(len(tokens), (4096,), generator=generator)]
        row += torch.bincount(drawn, minlength=V) / 4096
    rows[4, : min(V, 4096) // 32 * 32] = 1.0
    return rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("V, count", [(32, 20_000), (200, 20_000), (49_152, 200)])
def test_two_levels_draw_the_token_of_one(V, count, dtype):
    """Any uniform gives the same token, which has a probability."""
    corners = torch.tensor([0.0, 2**-53, 0.25, 0.5, 1 - 2**-52, 1 - 2**-53], dtype=F64)
    uniforms = torch.cat([corners, torch.rand(count, dtype=F64, generator=seeded())])
    for p in distributions(V).to(dtype):
        p = p.to(torch.promote_types(dtype, torch.float32))
        drawn = draw(p.expand(len(uniforms), V), uniforms)
        assert torch.equal(drawn, inverse_cdf(p, uniforms))
        assert (p[drawn] > 0).all()


def test_two_levels_of_any_probabilities():
    """Of logits as a model has them, for rows in groups."""
    uniforms = noise(0, 0, [0], 40, 50)[0]  # (G, M)
    p = distribution(normal(40, 50, 1000, seed=1) * 3, top_p=0.999).exp()  # (G, M, V)
    expected = inverse_cdf(p, uniforms[..., None]).squeeze(-1)
    assert torch.equal(draw(p, uniforms), expected)


@pytest.mark.parametrize("V, rare", [(BLOCK, 1e-9), (1000 * BLOCK, 1e-12)])
def test_rare_tokens_beside_a_frequent_one_are_drawn(V, rare):
    """Running sums in float32 would hardly rise behind the first token."""
    p = torch.full((1, V), rare)
    p[0, 0] = 1
    quarter = 1 - 0.75 * rare * V  # of the rare ones
    drawn = draw(p, torch.tensor([quarter], dtype=F64))
    assert abs(int(drawn) - V / 4) < V / 20


@pytest.mark.parametrize("step", (-1e-15, 0.0, 1e-15))
def test_at_the_edge_of_a_block(step):
    """Sums of blocks are rounded: what is left of a point may be below 0 or past the last token of
    its block that can be.
    """
    p = torch.rand(4000, 3, BLOCK, generator=seeded(2))
    p[..., :2] = 0
    p[..., -2:] = 0
    sums = p.sum(-1).cumsum(-1, dtype=F64)
    drawn = draw(p.flatten(1), sums[:, 0] / sums[:, -1] + step)
    assert (p.flatten(1).gather(1, drawn[:, None]) > 0).all()


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for a GPU: the names of CUDA that graphs use."""
    monkeypatch.setattr(CudaGraph, "failed", False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 1))
    for name in ("CUDAGraph", "Stream", "stream", "current_stream", "MemPool", "use_mem_pool"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())
    return torch.device("cuda")


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("fails", ["", "in the capture", "at its end"])
def test_graphs_and_their_failure_change_no_token(wanted, fails, gpu, monkeypatch, recwarn):
    """On a GPU that runs nothing during a capture. After one failure nothing more is captured."""
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
        policy = tiny.policy(cuda_graphs=wanted)
        return policy.rollout(tiny.examples(*["<bos> UP LEFT"] * 3), 4).tokens.tolist()

    expected = responses()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(sampler, "CudaGraph", lambda step, _, on: CudaGraph(step, gpu, on))
    monkeypatch.setattr(sampler, "decode_step", step)
    recwarn.clear()
    assert responses() == expected
    assert responses() == expected
    captures = calls.count("capture")
    assert captures == calls.count("end")
    assert bool(captures) == wanted
    assert ("replay" in calls) == (wanted and not fails)
    if fails:
        told = sum("--cuda-graphs false" in str(warning.message) for warning in recwarn)
        assert captures == told == wanted


@pytest.mark.parametrize(
    "full", [torch.OutOfMemoryError("full"), RuntimeError("CUDA error: out of memory\nand more")]
)
@pytest.mark.parametrize("again", [True, False])
def test_memory_that_runs_out_in_a_capture(full, again, gpu, monkeypatch):
    """What others have cached is freed, and it is tried once more. Then it is reported as what it
    is, so that fewer rollouts are tried and graphs stay in use.
    """
    emptied = mock.Mock()
    monkeypatch.setattr(torch.cuda, "empty_cache", emptied)
    # A capture in which something has failed cannot be ended either.
    torch.cuda.CUDAGraph().capture_end.side_effect = [RuntimeError("nothing was captured"), None]
    step = mock.Mock(side_effect=[None, full, full if again else None])
    graph = CudaGraph(step, gpu)
    graph(torch.Size([1]))
    if again:
        with pytest.raises(type(full), match="full|out of memory"):
            graph(torch.Size([1]))
    else:
        graph(torch.Size([1]))
        assert graph.graph.replay.call_count == 1
    assert emptied.call_count == 1
    assert not CudaGraph.failed
