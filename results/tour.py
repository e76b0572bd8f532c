# %% [markdown]
# # MaxRL in one page
#
# MaxRL trains a model on rewards that say right or wrong, as GRPO does, and divides by the mean reward instead of the
# standard deviation ([arXiv 2602.02710](https://arxiv.org/abs/2602.02710)). Here are the method, the advantages of a
# group, the weights of prompts, the figures of the demo, and a small model that learns from a reward of your own.
#
# It needs a clone of the repository, torch and matplotlib (`pip install -e ".[plots]"`). Start Jupyter in `results/`.
# All cells together take less than a minute on two CPU cores. There is no GPU in it.

# %%
import json
import sys

import matplotlib.pyplot as plt
import torch

sys.path.insert(0, "..")  # a clone that is not installed

from maxrl import policy
from maxrl.advantages import ADVANTAGES, weight
from maxrl.io.tokenizer import Tokenizer
from maxrl.metrics import pass_at_k
from maxrl.models import from_config
from maxrl.plots import STYLE
from maxrl.recipes import reverse_text
from maxrl.tasks import load_task

METHODS = ("rloo", "grpo", "maxrl")

# %% [markdown]
# ## The method
#
# A prompt has a pass rate $p$, the chance that one response to it is right. Ordinary RL raises $p$. Maximum likelihood
# would raise $\log p$, which is a series in the chance to fail:
#
# $$\log p = -(1-p) - \frac{(1-p)^2}{2} - \frac{(1-p)^3}{3} - \dots$$
#
# Ordinary RL keeps the first term. MaxRL keeps the first $T$ terms, and $N$ rollouts of a prompt are enough for
# $T = N - 1$. This is the series at $p = 0.3$.

# %%
p = 0.3
total = 0.0
for k in range(1, 17):
    total -= (1 - p) ** k / k
    if k in (1, 2, 4, 8, 16):
        print(f"{k:2} terms: {total:.3f}")
print(f"log p:    {torch.tensor(p).log():.3f}")

# %% [markdown]
# ## The advantages of a group
#
# A group is the $N$ rollouts of one prompt, and $K$ of them are right. The advantage says how much a rollout counts in
# the gradient. Look at the rows with one success: GRPO divides by the standard deviation, MaxRL by the mean.
# A group without any success has no gradient.

# %%
for successes in (0, 1, 2, 4, 7, 8):
    rewards = torch.tensor([[1.0] * successes + [0.0] * (8 - successes)])
    print(f"\n{successes} of 8 right      a right rollout   a wrong one")
    for name in METHODS:
        A = ADVANTAGES[name](rewards)[0]
        right = f"{A[0]:.2f}" if successes else "-"
        wrong = f"{A[-1]:.2f}" if successes < 8 else "-"
        print(f"{STYLE[name][0]:16}{right:>12}{wrong:>16}")

# %% [markdown]
# ## What a prompt weighs
#
# On average every method multiplies the gradient of $p$ by a weight $w(p)$. With GRPO the weight is the same for $p$
# and $1 - p$. With MaxRL a prompt that is seldom solved weighs up to $T$ times as much as one that always is.

# %%
rates = torch.logspace(-3, -0.001, 200, dtype=torch.float64)
for name in METHODS:
    label, colour = STYLE[name]
    plt.loglog(rates, weight(name, rates, rollouts=32), color=colour, label=f"{label}, 32 rollouts")
plt.loglog(rates, 1 / rates, "--", color="black", label="maximum likelihood, 1/p")
plt.xlabel("pass rate p")
plt.ylabel("weight w(p)")
plt.legend()
plt.show()
print("      p " + "".join(f"{STYLE[name][0]:>8}" for name in METHODS) + "     1/p")
for p in (0.01, 0.1, 0.5, 0.9):
    row = [weight(name, p, rollouts=32) for name in METHODS]
    print(f"{p:7} " + "".join(f"{w:8.2f}" for w in row) + f"{1 / p:8.2f}")

# %% [markdown]
# ## Fewer rows to train on, and rounds
#
# A rollout whose advantage is 0 is not trained on. `maxrl_rare` subtracts the majority of the other rollouts, 1 or 0,
# instead of their mean, so only the rarer outcome of a group has an advantage (all rollouts, if it is split evenly).
# The majority knows nothing of the rollout itself, so the weight stays exact. It has the order you tell it, $N$ by
# default. Here it has that of Algorithm 1. The noise is the variance of a group's gradient, with scores that are
# uncorrelated and of variance 1.

# %%
N = 32
groups = torch.ones(N + 1, N, dtype=torch.float64).tril(-1)  # row K: K successes, then failures
K = groups.sum(1)
print("      p  estimator   weight  noise  rows with an advantage")
for p in (0.01, 0.1, 0.5, 0.9):
    chance = torch.distributions.Binomial(N, torch.tensor(p, dtype=torch.float64)).log_prob(K).exp()
    for name, options in (("maxrl", {}), ("maxrl_rare", {"order": N - 1})):
        A = ADVANTAGES[name](groups, **options)
        noise = chance @ A.square().sum(1) / N**2
        live = chance @ (A != 0).double().mean(1)
        print(
            f"{p:7}  {name:10} {weight(name, p, rollouts=N, **options):7.2f}  {noise:5.3f}  {live:.2f}"
        )

# %% [markdown]
# Not every prompt needs $N$ rollouts. Sample it in rounds until one has a success, and use that round alone: the order
# is the sum of all rounds, and an easy prompt stops after the first. This needs an estimator that gives 0 to a group
# without a success and has order $m$ with $m$ rollouts, as `maxrl_rare` and `maxrl_success` do.
# `python train.py RECIPE --estimator maxrl_rare --rollouts 8,8,16` trains so. Reinforce-Ada
# ([arXiv 2510.04996](https://arxiv.org/abs/2510.04996)) also samples in rounds, until a prompt has enough signal.
#
# The last columns are of 20,000 simulated prompts. The derivative of the log-probability by $p$ is $1/p$ for a success
# and $-1/(1-p)$ for a failure.

# %%
SIZES = (8, 8, 16)
generator = torch.Generator().manual_seed(0)
print("      p  order 32  rounds, exact  simulated      rollouts")
for p in (0.01, 0.1, 0.5, 0.9):
    rewards = (
        torch.rand(20_000, sum(SIZES), generator=generator, dtype=torch.float64).lt(p).double()
    )
    gradient = torch.zeros(len(rewards), dtype=torch.float64)
    taken = torch.zeros(len(rewards), dtype=torch.float64)
    waiting = torch.ones(len(rewards), dtype=torch.bool)  # no success yet
    for group in rewards.split(SIZES, dim=1):
        A = ADVANTAGES["maxrl_rare"](group)  # of a group without a success: 0
        score = group / p - (1 - group) / (1 - p)
        gradient += waiting * (A * score).mean(1)
        taken += waiting * group.shape[1]
        waiting &= group.sum(1) == 0
    error = gradient.std() / len(gradient) ** 0.5
    print(
        f"{p:7}  {weight('maxrl', p, order=sum(SIZES)):8.2f}  {weight('maxrl_rare', p, rollouts=SIZES):13.2f}"
        f"  {gradient.mean():5.2f} ± {error:.2f}  {taken.mean():11.1f}"
    )

# %% [markdown]
# ## The demo
#
# `make demo` trains a small transformer on 9x9 mazes with the three methods. This is what it gave on three seeds
# ([the whole study](demo/README.md)).
#
# ![mean reward, prompts without a success, pass@1 and pass@64 over 400 steps, three seeds](demo/training.png)
#
# pass@k is the chance that at least one of k rollouts is right. The next cell computes it from the counts of right
# rollouts that are kept: 256 test mazes x 256 samples, means over three seeds.

# %%
with open("demo/test.json") as file:
    results = json.load(file)
found = {}
for row in results["checkpoints"]:
    found.setdefault(row["name"], []).append(row["counts"])
print(f"{'':12}" + "".join(f"  pass@{k:<4}" for k in (1, 8, 64, 256)))
for name, seeds in found.items():
    values = [
        torch.tensor([pass_at_k(256, counts, k).mean() for counts in seeds]).mean()
        for k in (1, 8, 64, 256)
    ]
    print(f"{STYLE[name][0]:12}" + "".join(f"{value:8.3f}  " for value in values))

# %% [markdown]
# ## A reward of your own
#
# The reward is any function that says 1 or 0. Here the model sees two made-up words and should begin with the last
# letter of the second one. It starts from random weights, so at first it is seldom right.
#
# The loop is Algorithm 1: sample, judge, turn rewards into advantages, one step along the gradient. Only one line
# depends on the method.

# %%
STEPS = 100
task = load_task("reverse_text", "train", plain=True)


def begins_with_the_last_letter(response, text):
    return float(response.split()[:1] == [text[-1]])


def train(method):
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_vocabulary(task.vocabulary)
    learner = policy.make_policy(
        from_config(reverse_text().model), tokenizer, [], task, "cpu", max_tokens=2
    )
    optimizer = torch.optim.AdamW(learner.model.parameters(), lr=3e-4)
    curve = []
    for step in range(STEPS):
        examples = task.batch(range(16 * step, 16 * step + 16))  # P = 16 prompts
        rollouts = learner.rollout(examples, 32, step=step)  # N = 32 for each
        rewards = []
        for example, responses in zip(examples, task.responses(rollouts)):
            text = example.columns["text"]
            rewards.append([begins_with_the_last_letter(response, text) for response in responses])
        rewards = torch.tensor(rewards)  # (P, N)
        advantages = ADVANTAGES[method](rewards)  # (P, N)
        optimizer.zero_grad()
        learner.backward(rollouts, advantages)
        torch.nn.utils.clip_grad_norm_(learner.model.parameters(), 1.0)
        optimizer.step()
        curve.append(rewards.mean().item())
    return curve


print(task[0].prompt)
plt.figure()
for name in METHODS:
    curve = train(name)
    label, colour = STYLE[name]
    plt.plot(curve, color=colour, label=label)
    print(
        f"{label:8} mean reward of the first and the last ten steps: {sum(curve[:10]) / len(curve[:10]):.2f}, "
        f"{sum(curve[-10:]) / len(curve[-10:]):.2f}"
    )
plt.xlabel("step")
plt.ylabel("mean reward")
plt.ylim(bottom=0)
plt.legend()
plt.show()

# %% [markdown]
# This is one seed of an easy task, where the methods need not differ. What they do on hard prompts is in
# [results/README.md](README.md). Change the reward, the method, or `lr` and run the cell again.
#
# ## Where to run it
#
# - **Here.** `python train.py subset_sum_sft`, then `python train.py subset_sum`: two minutes on a laptop.
#   `make demo` takes under ten.
# - **Colab.** In a first cell, clone the repository with `!git clone ADDRESS maxrl`, then `%cd maxrl/results` and
#   `!pip install -q -e "..[plots]"`. Colab has torch. A free GPU has 16 GB: `python train.py RECIPE --dry-run` says
#   what fits. Its disk is lost at the end, so copy `runs/` to a drive. This has not been tried.
# - **A cloud job.** One command for any machine with a GPU and torch: `pip install -e . && python train.py RECIPE
#   --resume auto --save-every-minutes 10 --out /mounted/disk/run`. If the machine is taken away, it saves at the
#   signal, and the same command resumes it. `/mounted/disk` has to outlive the machine. On the Hugging Face hub that is
#   `hf jobs run --flavor a10g-small --timeout 2h pytorch/pytorch bash -c "apt-get update && apt-get install -y git &&
#   git clone ADDRESS maxrl && cd maxrl && ..."`, with `--secrets HF_TOKEN` for models that need one. `hf jobs ps` and
#   `hf jobs logs` show it. This has not been tried either.
# - **Slurm.** `python -m maxrl.grid RECIPE --estimator maxrl,grpo --seed 0,1,2 --slurm` prints a script for `sbatch`,
#   one job a run. [maxrl/run/README.md](../maxrl/run/README.md) has the script for several nodes.
