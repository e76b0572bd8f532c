"""Every row of the metrics table of maxrl/run/README.md, computed again from what runs sampled,
what their models were at each update, and what their reward functions say of each response.
"""

import copy
import re
import resource
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from maxrl.analysis.metrics import pass_at_k
from maxrl.learning.classifier import ClassifierPolicy
from maxrl.learning.policy import SequencePolicy
from maxrl.system.sandbox import Died, TooSlow
from maxrl.tasks import rewards as functions
from maxrl.tasks.images import Images
from tests import ROOT
from tests.helpers import tiny
from tests.helpers.judged import Faulty
from tests.helpers.runs import metrics, passed

REWARDS = """
def up(completions):
    return [None if text[-4:] == "LEFT" else float(text[:2] == "UP") for text in completions]

def part(completions, calls=[]):
    calls.append(1)
    if len(calls) == 1 and FAILS:
        raise ValueError
    return [None if "LEFT LEFT" in text else len(text.split()) % 3 / 2 for text in completions]
"""
SHARED = (
    "tiny --task tests.helpers.tiny:Up --prompts 8 --max-response 5 --lr 0.01 --warmup-steps 2 "
    "--no-verdict rollout --init dice --steps 3 --out run --reward rewards.py"
)
RUNS = {  # by their reward functions
    ("up", "part"): f"{SHARED}:up --reward rewards.py:part --reward-weights 1,0 "
    "--estimator maxrl_rare --rollouts 2,2,4 --minibatches 2 --passes 2 --beta 0.05 "
    "--clip 0.01,0.02 --eval-every 1 --eval-prompts 5 --eval-samples 3 --eval-k 1,2",
    ("part",): f"{SHARED}:part --rollouts 3 --estimator rloo --reward-errors drop "
    "--eval-every 1 --eval-prompts 5 --eval-samples 3 --eval-k 1,2",
    (): "glyphs --steps 3 --eval-every 1 --out run",
}


def table() -> set[str]:
    """The names in the first column; one without a folder is in that of the name before it."""
    page = (ROOT / "maxrl/run/README.md").read_text().partition("## Metrics")[2]
    names = set()
    for line in re.findall(r"^\| (`.*?) \|", page, re.M):
        folder = ""
        for name in re.findall("`(.*?)`", line):
            whole = name if "/" in name else folder + name
            folder = whole[: whole.rfind("/") + 1]
            names.add(whole)
    return names


def canonical(name: str) -> str:
    name = re.sub("(?<=rewards/)(up|part)(?=/)", "NAME", name)
    return re.sub(r"(?<=pass@|best@)\d+", "k", name)


@pytest.fixture
def run(dice, shell, recipe, monkeypatch):
    """run(command) -> its lines of metrics.jsonl, and of each step the model, rounds, updates and
    evaluation."""
    steps: list[dict] = []

    def record(policy):
        rollout = policy.rollout
        backward = policy.backward

        def sampled(self, examples, N, **given):
            if "temperature" not in given and not given.get("earlier"):
                model = copy.deepcopy(self.model).double()
                steps.append({"model": model, "rounds": [], "updates": []})
            result = rollout(self, examples, N, **given)
            if "temperature" in given:
                steps[-1]["evaluated"] = result
                return result
            if policy is SequencePolicy:
                # As if the sampler were off, by more than rounding.
                result.log_probs = result.log_probs + 0.01 * (result.tokens % 3)
            steps[-1]["rounds"].append((given["indices"], result))
            return result

        def learnt(self, rollouts, advantages, ids=None):
            model = copy.deepcopy(self.model).double()
            result = backward(self, rollouts, advantages, ids)
            ids = range(len(advantages)) if ids is None else list(ids)
            norm = float(tiny.grads(self.model).norm())
            steps[-1]["updates"].append((model, rollouts, advantages.double(), ids, norm))
            return result

        monkeypatch.setattr(policy, "rollout", sampled)
        monkeypatch.setattr(policy, "backward", learnt)

    record(SequencePolicy)
    record(ClassifierPolicy)
    shutil.copytree(dice, "dice")

    def go(command):
        steps.clear()
        shutil.rmtree("run", ignore_errors=True)
        Path("rewards.py").write_text(f"FAILS = {'drop' in command}{REWARDS}")
        passed(shell("train.py", *command.split()))
        return metrics("run"), steps

    return go


def said(rollouts, names) -> dict[str, np.ndarray]:
    """What the functions say, and the reward, (P, N) each; NaN without a verdict."""
    P, N = rollouts.lengths.shape
    texts = [rollouts.completion(i, j) for i in range(P) for j in range(N)]
    space: dict = {"FAILS": False}
    exec(REWARDS, space)
    values = {name: np.array(space[name](texts), float).reshape(P, N) for name in names}
    rewards = values[names[0]].copy()
    # A single verdict of a group is compared with none.
    rewards[(~np.isnan(rewards)).sum(1) < min(2, N)] = np.nan
    return values | {"reward": rewards}


def of_rewards(rounds, names, failed: bool) -> dict:
    """The metrics of what was sampled."""
    all_said = [said(rollouts, names) for _, rollouts in rounds]
    if failed:
        all_said = [{key: v * np.nan for key, v in values.items()} for values in all_said]
    last = {}
    for (places, rollouts), values in zip(rounds, all_said):
        last |= dict(zip(places, zip(values["reward"], rollouts.lengths)))
    drawn = [rollouts.lengths.numel() for _, rollouts in rounds]
    found = {"rollouts": sum(drawn), "rollouts/per_prompt": sum(drawn) / len(last)}
    found["rounds"] = sum(len(places) for places, _ in rounds) / len(last)
    kept = [(rewards, lengths) for rewards, lengths in last.values() if (rewards == rewards).any()]
    found["tokens"] = sum(int(lengths.sum()) for _, lengths in kept)
    found["frac_unsolved"] = mean([1 not in rewards for rewards, _ in kept])
    groups = [set(group[group == group]) for group in all_said[0]["reward"]]
    groups = [group for group in groups if group]
    for name, only in {"zero_mean": [0], "one_mean": [1], "zero_std": [0, 0.5, 1]}.items():
        shares = [group in [{value} for value in only] for group in groups]
        found[f"frac_reward_{name}"] = mean(shares)
    found["reward"] = mean(all_said[0]["reward"])
    found["reward_std"] = std(all_said[0]["reward"])

    joined = {key: np.concatenate([v[key].ravel() for v in all_said]) for key in all_said[0]}
    found["rewards/rollouts_left_out"] = np.isnan(joined.pop("reward")).sum()
    without = [np.isnan(values["reward"]).all(1).sum() for values in all_said]
    found["rewards/groups_left_out"] = sum(without)
    found["rewards/failed_calls"] = failed
    if len(names) > 1:
        a, b = joined.values()
        joined["disagreement"] = np.where(np.isnan(a + b), np.nan, (a == 1) != (b == 1))
    for key, values in joined.items():
        found[f"rewards/{key}/mean"] = mean(values)
        found[f"rewards/{key}/std"] = std(values)

    rollouts = rounds[0][1]
    lengths = rollouts.lengths.double()
    found["completions/mean_length"] = lengths.mean()
    found["completions/max_length"] = lengths.max()
    found["completions/min_length"] = lengths.min()
    found["completions/clipped_ratio"] = 1 - rollouts.finished.double().mean()
    return found | {"entropy": rollouts.entropies.sum() / lengths.sum()}


def mean(values) -> float:
    known = [v for v in np.ravel(values) if v == v]
    return np.mean(known) if known else np.nan


def std(values) -> float:
    known = [v for v in np.ravel(values) if v == v]
    return np.std(known, ddof=1) if len(known) > 1 else np.nan


def log_probs(model, rollouts, g, i):
    response = rollouts.response(g, i)
    logits = tiny.row_logits(model, rollouts.prompts[g].tolist(), response).detach()
    return logits.log_softmax(-1)[range(len(response)), response]


def of_updates(updates, reference, beta) -> dict:
    """The metrics of what was learnt; with several updates the clip is (.01, .02)."""
    several = len(updates) > 1
    losses, off, kls, clipped = [], [], [], []
    for model, rollouts, advantages, ids, _ in updates:
        loss = divisor = 0.0
        for g, i in [(g, i) for g in ids for i in range(advantages.shape[1])]:
            scale = advantages.shape[1] / int((rollouts.lengths[g] > 0).sum())
            divisor += float(rollouts.lengths[g, i]) * scale
            A = float(advantages[g, i])
            log_m = log_probs(model, rollouts, g, i)
            # The first pass over all, or the rows with a gradient, are compared with the sampler.
            if A != 0 or several:
                off += [0.01 * (token % 3) for token in rollouts.response(g, i)]
            if not several:
                loss -= A * float(log_m.sum())
                continue
            ratio = (log_m - log_probs(updates[0][0], rollouts, g, i)).exp()
            loss -= float(torch.minimum(ratio * A, ratio.clamp(0.99, 1.02) * A).sum())
            clipped += [(r < 0.99 and A < 0, r > 1.02 and A > 0) for r in ratio.tolist()]
            log_q = log_probs(reference, rollouts, g, i) - log_m
            k3 = (log_q.exp() - log_q - 1).tolist()
            loss += beta * scale * sum(k3)
            kls += k3
        losses.append(loss / max(divisor, 1))
    found = {"loss": mean(losses), "grad_norm": mean([norm for *_, norm in updates])}
    found["skipped_updates"] = 0
    found["sampling/logprob_abs_diff/mean"] = np.mean(off or [0])
    found["sampling/logprob_abs_diff/max"] = max(off, default=0)
    if several:
        found["kl"] = np.mean(kls)
        low, high = np.mean(clipped, 0)
        found |= {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high}
        found["clip_ratio/region_mean"] = low + high
    return found


def of_evaluation(rollouts, names) -> dict:
    values = said(rollouts, names)
    rewards = values.pop("reward")
    P, N = rewards.shape
    judged = rewards[~np.isnan(rewards).any(1)]
    counts = (judged == 1).sum(1)
    found = {f"eval/pass@{k}": mean(pass_at_k(N, counts, k)) for k in (1, 2)}
    if names == ("part",):
        found["eval/best@1"] = mean(judged)
        found["eval/best@2"] = mean([max(pair) for row in judged for pair in combinations(row, 2)])
    found |= {f"eval/rewards/{name}/mean": mean(v) for name, v in values.items()}
    return found | {"eval/groups_left_out": P - len(counts), "eval/reward": mean(rewards)}


def of_images(step, model, examples) -> dict:
    """The metrics of a classifier; `model` is the one that was evaluated."""
    draws = step["rounds"][0][1]
    advantages, _, norm = step["updates"][0][2:]
    log_m = draws.logits.detach().double().log_softmax(1)
    with torch.no_grad():
        m = model.eval().float()(examples.images).double().softmax(1)
    p = m[range(len(m)), examples.labels]
    return {
        "loss": -(advantages * log_m.gather(1, draws.drawn)).mean(),
        "pass_rate": log_m.exp()[range(32), draws.labels].mean(),
        "top1": (log_m.argmax(1) == draws.labels).double().mean(),
        "entropy": -(log_m.exp() * log_m).sum(1).mean(),
        "images": 32,
        "reward": (draws.drawn == draws.labels[:, None]).double().mean(),
        "grad_norm": norm,
        "eval/top1": (m.argmax(1) == examples.labels).double().mean(),
        "eval/pass@2": (1 - (1 - p) ** 2).mean(),
    }


def of_machine(row, items) -> dict:
    """What depends on the machine follows from other values of the line, or has a bound."""
    parts = {f"seconds/{part}" for part in ("data", "rollout", "reward", "backward")}
    assert 0 < row["memory/peak_gb"] <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = {name: row[name] for name in [*parts, "memory/peak_gb"]}
    found["seconds"] = sum(row[part] for part in parts)
    return found | {f"{items}_per_second": row[items] / found["seconds"]}


def test_every_row_of_the_table(run, set_of_glyphs, monkeypatch):
    faults = [{"timeouts": 2.0}, {"failures": 3.0}, {"timeouts": 0.0}] * 3
    faults = [{f"rewards/verifier_{key}": n for key, n in row.items()} for row in faults]
    monkeypatch.setattr(functions, "POOL", Faulty([[TooSlow] * 2, [Died] * 3, []] * 3))
    reference = tiny.dice(UP=0.5, LEFT=0.25, DONE=0.25).double()
    validation = Images("validation", set_of_glyphs, 12).batch(range(100))
    seen = set()
    for names, command in RUNS.items():
        rows, steps = run(command)
        for number, (row, step) in enumerate(zip(rows, steps, strict=True)):
            expected = of_machine(row, "tokens" if names else "images")
            if names:
                expected |= of_rewards(step["rounds"], names, "drop" in command and number == 0)
                expected |= of_updates(step["updates"], reference, 0.05)
                expected |= {key: count for key, count in faults[number].items() if count}
                expected |= {"lr": 0.01 * min(1, (number + 1) / 2), "step": number}
                if "evaluated" in step:
                    expected |= of_evaluation(step["evaluated"], names)
                assert row.keys() == expected.keys()
            elif number < 2:
                expected |= of_images(step, steps[number + 1]["model"], validation)
            for name, value in expected.items():
                found = np.nan if row[name] is None else row[name]
                wanted = pytest.approx(float(value), rel=1e-4, abs=1e-6, nan_ok=True)
                assert found == wanted, (command, number, name)
            seen |= set(map(canonical, expected.keys() - {"step"}))
    assert seen == table() - {"memory/reserved_gb"}
