"""The policy's gradient: nothing that saves work or memory changes it."""

from itertools import product
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from maxrl.advantages import ADVANTAGES
from maxrl.advantages.options import estimator_options
from maxrl.learning.config import Config
from maxrl.learning.policy import SequencePolicy
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.hf_config import FAMILIES
from maxrl.run.evaluation import evaluate, judge_samples
from maxrl.sampling import sampler
from maxrl.sampling.cuda import CudaGraph
from maxrl.sampling.prompts import PromptError
from maxrl.tasks import Example
from maxrl.tasks.maze import VOCABULARY
from maxrl.tasks.rewards import Judge
from tests.helpers import tiny
from tests.helpers.tensors import normal


@pytest.fixture
def advantages():
    """(4, 4), one group of zeros among them."""
    values = normal(4, 4, seed=5)
    values[1] = 0
    return values


@pytest.mark.parametrize(
    "family, lengths",
    [*product(FAMILIES, [(9, 5, 1, 7)]), ("qwen3", (6, 6, 6, 6)), ("qwen3", (1, 1, 1, 1))],
)
def test_the_gradient_is_that_of_plain_rows(family, lengths, advantages):
    """From one rollout per forward to everything in one, slices of a group included (9 + 4 * 6
    tokens do not fit into 20), prompts shared or not, layers run again in the backward or not."""

    def gradient(budget, share, again, bonus):
        model = tiny.model(model_type=family, head_dim=8)
        options = {"gradient_checkpointing": again, "entropy_bonus": bonus}
        policy = tiny.policy(model, share, micro_batch_tokens=budget, **options)
        return tiny.gradient(policy, tiny.rollouts(lengths), advantages)

    for bonus in (0, 0.1):
        expected = gradient(10**6, False, False, bonus)
        for budget, share, again in (
            (10**6, True, True),
            (75, True, False),
            (40, False, True),
            (20, True, True),
            (14, True, False),
            (1, False, True),
        ):
            found = gradient(budget, share, again, bonus)
            assert tiny.distance(found, expected) < 1e-12, (budget, share, again)


def test_mean_log_probs():
    """That a sampler's log-probs are those of training is in test_sampler.py."""
    rollouts = tiny.policy().rollout(tiny.examples("UP DOWN LEFT", "WALL"), 5, step=3)
    expected = rollouts.log_probs.sum(-1) / rollouts.lengths
    assert torch.equal(rollouts.mean_log_probs(), expected)
    options = estimator_options(Config(estimator="differential_smoothing"), rollouts)
    assert torch.equal(options["mean_log_probs"], expected)


def test_what_is_read_of_a_response():
    """Its text has all tokens; what is judged neither the stop token nor special ones."""
    rollouts = tiny.rollouts()
    rollouts.tokenizer.backend.add_special_tokens(["WALL"])
    words = [rollouts.tokenizer.id(word) for word in ("UP", "WALL", "DONE")]
    rollouts.tokens[1, 2, :3] = torch.tensor(words)
    rollouts.lengths[1, 2] = 3
    assert rollouts.text(1, 2) == "UP WALL DONE"
    assert rollouts.prompt_text(0).split() == [VOCABULARY[i] for i in rollouts.prompts[0]]
    assert rollouts.completion(1, 2) == "UP"
    rollouts.finished[1, 2] = False
    assert rollouts.completion(1, 2) == "UP DONE"


@pytest.mark.parametrize("aggregation, divisor", [("token", 12), ("sequence", 3), ("constant", 36)])
def test_demonstrations_equal_cross_entropy(aggregation, divisor):
    """Advantage 1 on the answers is maximum likelihood; the divisor of "sequence" is the number of
    answers."""
    examples = [
        Example("<bos> GRID_START WALL", "UP UP DONE <eos>"),
        Example("<bos>", "DONE <eos>"),
        Example("<bos> PATH GOAL", "LEFT DOWN RIGHT UP DONE <eos>"),
    ]
    model = tiny.model()
    policy = tiny.policy(model, aggregation=aggregation, micro_batch_tokens=12)
    rollouts = policy.demonstrate(examples)
    assert rollouts.lengths.tolist() == [[4], [2], [6]]
    assert rollouts.finished.all()
    assert rollouts.log_probs is None
    gradient = tiny.gradient(policy, rollouts, ADVANTAGES["supervised"](torch.zeros(3, 1)))
    model.zero_grad()
    for example in examples:
        prompt = policy.tokenizer.encode(example.prompt)
        answer = policy.tokenizer.encode(example.answer)
        logits = tiny.row_logits(model, prompt, answer)
        F.cross_entropy(logits, torch.tensor(answer), reduction="sum").backward()
    assert tiny.distance(gradient * divisor, tiny.grads(model)) < 1e-12


def test_every_demonstration_must_fit_by_itself():
    """A long prompt beside a long answer is none; 12 and 8 tokens are too many for 19 positions."""
    model = tiny.model(max_position_embeddings=19)
    policy = tiny.policy(model)
    long, short = (" ".join(["UP"] * count) for count in (12, 1))
    policy.demonstrate([Example(long, short), Example(short, long)])
    with pytest.raises(PromptError, match="12 tokens and a response of up to 8 "):
        policy.demonstrate([Example(long, " ".join(["UP"] * 7))])


@pytest.mark.parametrize("rows", [1, 12, 4096])
def test_judge_samples(rows):
    """Rewards by hand from rollouts of the same noise, whatever the waves; the noise goes by the
    place in `indices`.
    """
    policy = tiny.policy(wave_rows=rows)
    task = tiny.Parity()
    indices = [4, 0, 6, 2]
    told = []
    rewards, _ = judge_samples(policy, task, indices, 6, seed=9, progress=told.append)
    rollouts = policy.rollout([task[i] for i in indices], 6, seed=9)
    assert torch.equal(rewards, (rollouts.lengths % 2 == 0).double())
    assert 0 < rewards.sum() < 24
    assert sum(told) == 4


@pytest.mark.parametrize("estimator", ["maxrl", "tailrl"])
def test_best_of_k_is_evaluated_where_rewards_may_be_graded(estimator):
    """Also if by chance all rewards of an evaluation are 0 or 1."""
    cfg = Config(estimator=estimator, eval_prompts=3, eval_samples=2, eval_k=(1, 2))
    task = tiny.Up("validation")
    found = evaluate(cfg, tiny.policy(), task, Judge(task))
    assert ("eval/best@2" in found) == (estimator == "tailrl")


def test_a_penalty_of_another_name_is_refused():
    with pytest.raises(ValueError, match="k2 or k3, got 'K2'"):
        SequencePolicy(Checkpoint(tiny.model(), stop_tokens=[2]), max_tokens=3, kl="K2")


def test_a_policy_without_stop_tokens_is_refused():
    with pytest.raises(ValueError, match="no stop tokens"):
        SequencePolicy(Checkpoint(tiny.model()), max_tokens=3)


@pytest.mark.parametrize("room, halvings", [(20, 0), (9, 1), (5, 2), (3, 3), (1, 4)])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_out_of_memory_in_sampling_changes_no_rollout(monkeypatch, room, halvings, error, recwarn):
    """A device with room for so many rows: 20 of whole groups, 8, then 4, 2, 1 of a group."""
    examples = tiny.examples(*["UP " * n + "UP" for n in range(5)])
    expected = tiny.policy(wave_rows=8).rollout(examples, 4, step=3)
    asked = []
    # What an earlier wave has left: its memory is given back, too.
    monkeypatch.setattr(CudaGraph, "pool", "of graphs")

    def limited(model, prompts, uniforms, *arguments, **options):
        asked.append(uniforms[..., 0].numel())
        if asked[-1] > room:
            raise error
        return sampler.generate(model, prompts, uniforms, *arguments, **options)

    monkeypatch.setattr("maxrl.learning.policy.generate", limited)
    recwarn.clear()
    rollouts = tiny.policy(wave_rows=20).rollout(examples, 4, step=3)
    assert sum("out of memory" in str(warning.message) for warning in recwarn) == halvings
    assert asked[-1] <= room
    assert CudaGraph.pool == (None if halvings else "of graphs")
    tiny.same(rollouts, expected)


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), KeyError("x")])
def test_errors_that_fewer_rows_do_not_mend(monkeypatch, error):
    """No memory for a single row, or another error, which is not tried again."""
    failing = mock.Mock(side_effect=error)
    monkeypatch.setattr("maxrl.learning.policy.generate", failing)
    with pytest.raises(type(error)):
        tiny.policy().rollout(tiny.examples("UP"), 4)
    assert failing.call_count == (1 if isinstance(error, KeyError) else 3)
