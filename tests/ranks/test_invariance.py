"""What must not change the gradient does not, in float32: micro-batches, order of rows,
checkpointing, ranks, shared prompt.
"""

import numpy as np
import pytest
import tiny
import torch
import worker_invariance as worker
from conftest import ROOT
from started import ended, torchrun
from worker_ddp import Parity

from maxrl.evaluation import judge_samples

WHOLE = (
    "as they are",
    10**6,
    False,
    False,
)  # one process, one forward with plain rows: nothing that could go wrong


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    file = tmp_path_factory.mktemp("ranks") / "results"
    code, said = ended(torchrun(ROOT / "tests/ranks/worker_invariance.py", file))
    assert code == 0, said
    return [torch.load(f"{file}.{rank}") for rank in (0, 1)]


@pytest.fixture(scope="module")
def exact():
    """The gradient in float64, row by row: -sum of A_i log m(y_i) over the number of tokens,
    nothing of policy.py in it.
    """
    model, (rollouts, advantages) = tiny.model(), worker.stored(torch.float64)
    for prompt, rows, lengths, A in zip(
        rollouts.prompts, rollouts.tokens, rollouts.lengths, advantages
    ):
        for tokens, length, advantage in zip(rows, lengths, A):
            text = torch.cat([prompt, tokens[:length]])
            log_probs = model.lm_head(model(text[None, None, :-1])[0, 0]).log_softmax(
                -1
            )  # (tokens of the text - 1, V)
            log_prob = log_probs.gather(1, text[1:, None])[len(prompt) - 1 :].sum()
            (-advantage * log_prob / rollouts.lengths.sum()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_gradient_depends_on_none_of_it(ranks, exact):
    """72 ways to one gradient of the same stored rollouts: each within 1e-5 of that of one process
    in float32, and of the exact one."""
    alone = worker.compute(0, 1)
    whole = alone[WHOLE]
    header = "".join(
        f"{r}{'c' * again}{'s' * share}".rjust(9)
        for r in (1, 2)
        for again in (0, 1)
        for share in (0, 1)
    )
    print(
        "\nrelative distance to the gradient of one process in one forward, float32; that one is "
        f"{tiny.distance(whole.double(), exact):.1e} from float64."
    )
    print("Columns: ranks, c gradient checkpointing, s shared prompt")
    print(f"{'tokens of a micro-batch, order':30}{header}")
    for order in worker.ORDERS:
        for budget in worker.MICRO_BATCHES:
            row = []
            for results in (alone, ranks[0]):
                for again in (False, True):
                    for share in (False, True):
                        gradient = results[order, budget, again, share]
                        row.append(tiny.distance(gradient, whole))
                        assert row[-1] < 1e-5, (order, budget, again, share)
                        assert tiny.distance(gradient.double(), exact) < 1e-5, (
                            order,
                            budget,
                            again,
                            share,
                        )
            print(f"{f'{budget}, {order}':30}" + "".join(f"{d:9.1e}" for d in row))
    for case in worker.CASES:
        assert torch.equal(ranks[0][case], ranks[1][case]), "both ranks hold the same gradient"
    assert whole.dtype == torch.float32 and whole.norm() > 0.01


def test_a_mean_per_micro_batch_is_another_gradient(exact):
    """What circulates: every micro-batch divides by its own tokens, and their mean is taken. It
    depends on how the batch is cut, and points elsewhere; here every group is a micro-batch."""
    rollouts, advantages = worker.stored(torch.float64)
    policy = tiny.policy(tiny.model())
    parts = []
    for g in range(len(advantages)):
        one = torch.arange(len(advantages)) == g
        parts.append(tiny.gradient(policy, rollouts.select(one), advantages[one]))
    wrong = sum(parts) / len(parts)
    cosine = float(torch.nn.functional.cosine_similarity(wrong, exact, dim=0))
    print(
        f"a mean per micro-batch: distance {tiny.distance(wrong, exact):.3f}, cosine {cosine:.4f}"
    )
    assert tiny.distance(wrong, exact) > 1e-2 and cosine < 0.9999
    shares = rollouts.lengths.sum(1).double() / rollouts.lengths.sum()  # (P,)
    weighted = sum(share * part for share, part in zip(shares, parts))
    assert tiny.distance(weighted, exact) < 1e-12, (
        "weighted by its tokens, every part is in its place"
    )


def test_the_orders_are_others():
    """The rollouts of every order are the same as a set, and differ as a list."""
    plain, A = worker.stored(torch.float64)
    for order in worker.ORDERS[1:]:
        rollouts, advantages = worker.ordered(*worker.stored(torch.float64), order)
        assert not torch.equal(rollouts.tokens, plain.tokens) and not torch.equal(advantages, A)
        rows = [
            sorted(
                (tuple(x.prompts[g].tolist()), tuple(x.tokens[g, i].tolist()), float(a[g, i]))
                for g in range(6)
                for i in range(worker.N)
            )
            for x, a in ((plain, A), (rollouts, advantages))
        ]
        assert rows[0] == rows[1]


def test_ranks_share_a_majority_vote(ranks):
    """Both know all values; they are those of one process, and of the rollouts themselves."""
    counts, majority = worker.votes()
    assert ranks[0]["votes"] == ranks[1]["votes"] == [counts, majority]
    task, policy = worker.LastWord(), tiny.policy(tiny.model())
    rollouts = policy.rollout([task[i] for i in range(7)], 4, seed=2)
    for i in range(7):
        words = [task.final(rollouts.completion(i, j)) for j in range(4)]
        votes = {word: words.count(word) for word in set(words) - {None}}
        tied = [word in worker.RIGHT for word, n in votes.items() if n == max(votes.values())]
        assert majority[i] == pytest.approx(np.mean(tied) if tied else 0)
    assert len(set(majority)) > 1 and 0 < sum(counts) < 28
    assert judge_samples(policy, Parity(), range(2), 4)[1] is None, "no answers, no vote"
