"""A classifier as a policy: expected gradients by enumeration, cross-entropy as the limit, exact
pass@k, train.py on images.

The proofs run in float64 on models small enough to sum over everything that can be drawn.
"""

import math

import pytest
import torch

from maxrl.advantages import ADVANTAGES, weight
from maxrl.learning.classifier import ClassifierPolicy, Draws, noise
from maxrl.learning.config import Config
from maxrl.models.resnet import ResNet, ResNetConfig
from maxrl.run.evaluation import evaluate
from maxrl.sampling.rollouts import with_verdict
from maxrl.system.totals import Totals
from maxrl.tasks.images import ImageBatch, Images
from maxrl.tasks.rewards import Judge
from tests.helpers.classified import Plain, pictures
from tests.helpers.outcomes import any_options
from tests.helpers.tensors import F64, close

LOGITS = [[0.3, -1.2, 0.9], [2.5, 0.1, -0.4]]  # two images, three classes


class Table(torch.nn.Module):
    """The logits of image i are row i of a table: the gradient of the table is the gradient of the
    logits.
    """

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(LOGITS, dtype=F64))

    def forward(self, images):
        return self.logits[images[:, 0, 0, 0].long()]


def images_of(rows, labels):
    """Images of which Table has the logits of these rows."""
    images = torch.tensor(rows, dtype=torch.uint8)[:, None, None, None]
    return ImageBatch(images.expand(-1, 3, 1, 1), torch.tensor(labels))


# ------------------------------------------------- expectations
@pytest.mark.parametrize(
    "name", sorted(ADVANTAGES.keys() - {"supervised", "differential_smoothing"})
)
@pytest.mark.parametrize("image, label", [(0, 0), (0, 1), (1, 0), (1, 2)])
@pytest.mark.parametrize("N", [2, 5])
def test_expected_logit_gradient_is_weight_times_grad_p(name, N, image, label):
    """Through backward() itself, for p of .05 to .9: sum over outcomes of P(outcome) gradient =
    w_N(p) dp/dlogits.

    All 3^N outcomes are one batch, each advantage times its outcome's probability: backward is
    linear in them.
    """
    model = Table()
    policy = ClassifierPolicy(model, "abc")
    pi = model.logits[image].softmax(0)
    (grad_p,) = torch.autograd.grad(pi[label], model.logits)
    drawn = torch.cartesian_prod(*[torch.arange(3)] * N)  # (3^N, N)
    probability = pi.detach()[drawn].prod(1)
    examples = images_of([image] * len(drawn), [label] * len(drawn))
    rollouts = Draws(drawn, policy.logits(examples.images), examples.labels, policy.classes)
    options = any_options(name, 2)
    advantages = ADVANTAGES[name]((drawn == label).double(), **options)
    policy.backward(rollouts, advantages * probability[:, None] * len(drawn))
    # A loss goes down.
    close(-model.logits.grad, grad_p * weight(name, pi[label].item(), rollouts=N, **options))


@pytest.mark.parametrize("judged", [[0, 2], [3], []])
def test_images_without_a_verdict_are_left_out(judged):
    """The gradient and the divisor are those of the other images alone; without any the gradient
    is 0.
    """
    rows = torch.tensor([0, 1, 0, 1])
    labels = torch.tensor([2, 0, 1, 1])
    drawn = torch.tensor([[0, 1, 2], [0, 1, 1], [1, 1, 2], [0, 0, 1]])  # a right one in each row
    model = Table()
    policy = ClassifierPolicy(model, "abc")

    def draws(chosen):
        examples = images_of(rows[chosen].tolist(), labels[chosen].tolist())
        logits = policy.logits(examples.images)
        return Draws(drawn[chosen], logits, examples.labels, policy.classes)

    rewards = torch.full((4, 3), math.nan, dtype=F64)
    rewards[judged] = (drawn == labels[:, None]).double()[judged]
    kept, verdicts = with_verdict(draws([0, 1, 2, 3]), rewards)
    assert verdicts.shape == (len(judged), 3)
    assert torch.equal(kept.drawn, drawn[judged])
    advantages = ADVANTAGES["maxrl"](verdicts) if judged else verdicts
    stats = policy.backward(kept, advantages).metrics()
    assert stats["images"] == len(judged)
    gradient = model.logits.grad
    if not judged:
        assert stats["loss"] == 0
        assert not gradient.any()
        return
    assert gradient.any()
    model.logits.grad = None
    assert policy.backward(draws(judged), advantages).metrics() == stats
    close(gradient, model.logits.grad)


# ------------------------------------------------- draws
def test_a_draw_depends_on_seed_step_place_and_logits_alone():
    examples = pictures(6)
    policy = ClassifierPolicy(Plain(), "abcde", seed=5)

    def drawn(chosen=range(6), step=2, first=10, seed=None):
        part = ImageBatch(examples.images[list(chosen)], examples.labels[list(chosen)])
        places = [first + i for i in chosen]
        return policy.rollout(part, 50, step=step, indices=places, seed=seed).drawn

    whole = drawn()
    for chosen in ([3], [5, 0], [1, 2, 4]):
        assert torch.equal(drawn(chosen), whole[chosen])
    for other in ({"step": 3}, {"first": 11}, {"seed": 6}, {"step": 3, "seed": 4}):
        assert not torch.equal(drawn(**other), whole)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_frequencies_equal_probabilities(temperature):
    """Chi-square over 100,000 draws of each image, 5 standard deviations."""
    policy = ClassifierPolicy(Table(), "abc")
    drawn = policy.rollout(images_of([0, 1], [0, 0]), 100_000, temperature=temperature).drawn
    for row, logits in zip(drawn, policy.model.logits.detach()):
        want = (logits / temperature).softmax(0) * 100_000
        assert ((row.bincount(minlength=3) - want) ** 2 / want).sum() < 2 + 5 * 2


def test_log_probabilities_are_those_of_the_classes_drawn():
    """The other statistics are in runs/test_metrics.py."""
    model = Table()
    rollouts = ClassifierPolicy(model, "abc").rollout(images_of([0, 1], [2, 1]), 9)
    close(rollouts.mean_log_probs(), model.logits.log_softmax(1).gather(1, rollouts.drawn))


def test_exact_pass_at_k(set_of_glyphs):
    """Against one image at a time in eval mode; more images than a batch of the evaluation, the
    last one uneven.
    """
    task = Images("validation", set_of_glyphs, 12)
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(12, "basic", (1, 1), 8))
    policy = ClassifierPolicy(model, task.classes)
    for _ in range(3):
        policy.logits(task.batch(range(64)).images)  # batch-norm has seen something
    before = {k: v.clone() for k, v in model.state_dict().items()}
    cfg = Config(task="images", eval_prompts=len(task), eval_k=(1, 3, 40))
    result = evaluate(cfg, policy, task, Judge(task))
    assert model.training
    close(model.state_dict(), before, 0)
    model.eval()
    with torch.no_grad():
        pi = torch.cat([model(task.batch([i]).images) for i in range(300)]).double().softmax(1)
    labels = torch.tensor([task[i].columns["label"] for i in range(300)])
    p = pi[range(300), labels]
    expected = {f"eval/pass@{k}": (1 - (1 - p) ** k).mean().item() for k in (1, 3, 40)}
    expected["eval/top1"] = (pi.argmax(1) == labels).double().mean().item()
    assert result == pytest.approx(expected, abs=1e-6)
    model.train()
    totals = Totals()
    policy.rollout(task.batch(range(300)), 1).count(totals)
    assert abs(totals.metrics()["pass_rate"] - expected["eval/pass@1"]) > 1e-5, (
        "train mode would be another number"
    )


def test_noise_is_that_of_independent_draws():
    """Put in order, numbers of one rollout are uniform, those of two independent."""
    rows = [noise(0, step, [1], 3) for step in range(20_000)]
    drawn = torch.stack([uniforms[0, order] for uniforms, order in rows])
    # Chi-square with 19 and 24 degrees, 5 standard deviations.
    for column in drawn.T:
        counts = torch.histc(column, 20, 0, 1)
        assert ((counts - 1000) ** 2 / 1000).sum() < 19 + 5 * math.sqrt(38)
    assert drawn.T.corrcoef().fill_diagonal_(0).abs().max() < 5 / math.sqrt(20_000)
    squares = (drawn[:, 0] * 5).long() * 5 + (drawn[:, 1] * 5).long()
    counts = squares.bincount(minlength=25)
    assert ((counts - 800) ** 2 / 800).sum() < 24 + 5 * math.sqrt(48)
