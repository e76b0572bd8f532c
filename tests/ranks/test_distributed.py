"""Two ranks are one process: gradients, rollouts, counts, and train.py under torchrun (gloo)."""

import json
import os
from pathlib import Path

import pytest
import tiny
import torch
import worker_ddp
from conftest import ROOT
from runs import metrics, same_metrics
from safetensors.torch import load_file
from started import ended, torchrun

import train
from maxrl import checkpoint
from maxrl.evaluation import judge_samples
from maxrl.parallel import distributed


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    file = tmp_path_factory.mktemp("ranks") / "results"
    code, said = ended(torchrun(ROOT / "tests/ranks/worker_ddp.py", file))
    assert code == 0, said
    return [torch.load(f"{file}.{rank}") for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    return worker_ddp.compute(0, 1) | worker_ddp.compute_images(0, 1)


@pytest.mark.parametrize("case", worker_ddp.CASES, ids=str)
def test_gradient_equals_the_single_process(ranks, alone, case):
    """On the same stored rollouts, in float64, on both ranks: DDP averages over ranks, the loss is
    one sum.

    Also when one rank has only groups without advantages, and must still take part in the one
    synchronised backward; and when the ranks cut their rows into different numbers of
    micro-batches.
    """
    expected, stats = alone[case]
    assert (expected.norm() > 0) == (case[0] != "nobody")
    for rank in ranks:
        gradient, statistics = rank[case]
        assert float((gradient - expected).norm()) <= 1e-12 * float(expected.norm())
        assert statistics == pytest.approx(stats, abs=1e-12)


def test_the_gradient_depends_on_none_of_it(ranks, alone):
    """72 ways to one gradient in float32: micro-batches, order of groups and rows, checkpointing,
    shared prompt, ranks."""
    exact = alone[worker_ddp.CASES[0]][0]
    whole = alone["ways"]["as they are", 10**6, False, False]
    assert whole.dtype == torch.float32 and tiny.distance(whole.double(), exact) < 1e-5
    for found in (alone, *ranks):
        for way, gradient in found["ways"].items():
            assert tiny.distance(gradient, whole) < 1e-5, way


def test_ranks_share_a_majority_vote(ranks):
    """Both know all values; they are those of one process, and of the rollouts themselves."""
    counts, majority = worker_ddp.votes()
    assert ranks[0]["votes"] == ranks[1]["votes"] == [counts, majority]
    task, policy = worker_ddp.LastWord(), tiny.policy(tiny.model())
    rollouts = policy.rollout([task[i] for i in range(7)], 4, seed=2)
    for i in range(7):
        words = [task.final(rollouts.completion(i, j)) for j in range(4)]
        votes = {word: words.count(word) for word in set(words) - {None}}
        tied = [
            task.verify(f"- {word}", None) for word in votes if votes[word] == max(votes.values())
        ]
        assert majority[i] == pytest.approx(sum(tied) / len(tied) if tied else 0)
    assert len(set(majority)) > 1 and 0 < sum(counts) < 28
    none = judge_samples(policy, worker_ddp.Parity(), range(2), 4)[1]
    assert none is None, "no answers, no vote"


def test_gradients_stay_in_the_buckets_of_ddp(ranks):
    """They are held once: before every micro-batch, from the first on, they lie where the last
    backward leaves them.
    """
    expected = worker_ddp.three_steps(0, 1)
    for rank in (rank["three steps"] for rank in ranks):
        assert len(rank["places"]) >= 6 and all(
            places == rank["places"][0] for places in rank["places"]
        )
        assert None not in rank["places"][0] and len(rank["buckets"]) < 4 < len(rank["places"][0])
        assert sum(rank["buckets"].values()) == rank["size"]
        assert float((rank["weights"] - expected["weights"]).norm()) <= 1e-12 * float(
            expected["weights"].norm()
        )
    start = torch.cat([p.detach().flatten() for p in tiny.model().parameters()])
    assert float((expected["weights"] - start).norm()) > 1e-3


def test_rollouts_and_counts_equal_the_single_process(ranks, alone):
    assert ranks[0]["rollouts"] | ranks[1]["rollouts"] == alone["rollouts"]
    assert not set(ranks[0]["rollouts"]) & set(ranks[1]["rollouts"])
    assert (
        ranks[0]["counts"] == ranks[1]["counts"] == alone["counts"]
        and 0 < sum(alone["counts"]) < 30
    )


def test_metrics_equal_the_single_process(ranks, alone):
    """Every one that is a function of the rollouts, and none of them trivial; of memory both ranks
    log the larger one.
    """
    expected = alone["metrics"]
    assert {
        "kl",
        "clip_ratio/low_mean",
        "clip_ratio/high_mean",
        "entropy",
        "completions/clipped_ratio",
        "reward_std",
        "frac_reward_zero_mean",
        "rewards/even/std",
        "rewards/second_letter/mean",
        "tokens",
    } < set(expected)
    zero = {name for name, value in expected.items() if value == 0}
    assert zero <= {
        "rewards/failed_calls",
        "rewards/groups_left_out",
        "rewards/rollouts_left_out",
        "frac_reward_zero_mean",
        "frac_reward_one_mean",
        "frac_reward_zero_std",
    }
    for rank in ranks:
        assert rank["metrics"] == pytest.approx(expected, abs=1e-12)
    (one, logged), (two, too) = (rank["memory"] for rank in ranks)
    assert logged == too == pytest.approx(max(one, two), rel=0.05) and logged > 0.05


def test_rounds_are_the_single_process(ranks, alone):
    """The ranks take different numbers of rounds, and their prompts the same as in one process."""
    expected = alone["rounds"]
    found = [rank["rounds"] for rank in ranks]
    assert (
        found[0]["counts"] | found[1]["counts"] == expected["counts"]
        and len(set(expected["counts"].values())) > 1
    )
    for rank in found:
        assert tiny.distance(rank["gradient"], expected["gradient"]) <= 1e-12
        assert rank["stats"] == pytest.approx(expected["stats"], abs=1e-12)


@pytest.mark.parametrize("name", ["plain", "residual, eval mode"])
def test_a_classifier_on_two_ranks_is_the_single_process(ranks, alone, name):
    """Four images on rank 0 and three on rank 1: an average of the ranks' own means would be
    another gradient.
    """
    for estimator in ("supervised", "maxrl", "nobody right"):
        expected, stats = alone[name, estimator]
        assert (
            (expected != 0).float().mean() > 0.5
            or estimator == "nobody right"
            and not expected.any()
        )
        for rank in ranks:
            gradient, statistics = rank[name, estimator]
            assert float((gradient - expected).norm()) <= 1e-12 * float(expected.norm())
            assert statistics == pytest.approx(stats, abs=1e-12)
    assert ranks[0][name, "draws"] | ranks[1][name, "draws"] == alone[name, "draws"]
    for rank in ranks:
        assert rank[name, "pass rates"] == [
            pytest.approx(values, abs=1e-12) for values in alone[name, "pass rates"]
        ]
    assert len(alone[name, "pass rates"][0]) == 5


def test_ranks_evaluate_with_the_averages_of_rank_0(ranks):
    """Batch-norm's running averages are per rank while training; the checkpoint has rank 0's, and
    so has the evaluation.
    """
    assert ranks[0]["by this rank alone"] != ranks[1]["by this rank alone"]
    for rank in ranks:
        assert rank["pass rates after training"] == pytest.approx(
            ranks[0]["by this rank alone"], abs=1e-12
        )


def test_train_under_torchrun(mazes, warm, in_a_directory_of_its_own):
    """The same command on two ranks: the first step's rollouts and gradient are equal, later ones
    up to rounding, and evaluation is shared. One rank alone writes and speaks."""
    options = (
        "--prompts 8 --rollouts 8 --steps 3 --lr 1e-5 --max-response 20 --save-every 2 "
        "--eval-every 3 --eval-prompts 7 --eval-samples 4 --eval-k 1,4 --schedule cosine "
        "--device cpu --precision float32 --show-every 3 --task.size 7"
    )
    arguments = ["--init", warm, "--task.directory", mazes, *options.split()]
    train.main(["maze9_laptop", *map(str, arguments), "--out", "one"])
    code, said = ended(torchrun(ROOT / "train.py", "maze9_laptop", *arguments, "--out", "two"))
    assert code == 0, said
    assert said.count("step 3/3 ") == 1 and "on 2 ranks" in said, "the main rank alone speaks"
    one = metrics("one")
    assert len(one) == 3 and one[0]["reward"] > 0
    same_metrics(metrics("two"), one)
    samples = [
        json.loads(Path(run, "samples.jsonl").read_text().splitlines()[0]) for run in ("one", "two")
    ]
    # Of two ranks the first one's prompts are shown.
    assert [line["rollouts"] for line in samples] == [samples[0]["rollouts"]] * 2
    assert {line["step"] for line in samples} == {samples[0]["step"]}
    weights = [load_file(checkpoint.find(run) / "model.safetensors") for run in ("one", "two")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=1e-5, rtol=0)
    recipe = json.loads(Path("two/recipe.json").read_text())
    assert recipe["ranks"] == 2 and recipe["command"].startswith("torchrun --nproc-per-node 2 ")


def test_peak_memory_of_a_gpu_is_the_steps(monkeypatch):
    """GiB since it was asked last; a process alone knows its own."""
    peaks, device = [3 * 2**30, 2**29], torch.device("cuda", 0)
    monkeypatch.setattr(
        torch.cuda, "max_memory_allocated", lambda where: peaks[0] if where == device else 0
    )
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda where: peaks.pop(0))
    assert [distributed.peak_memory(device)["memory/peak_gb"] for _ in range(2)] == [
        3.0,
        0.5,
    ] and not peaks


FLAGS = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")


@pytest.mark.parametrize(
    "has",
    [(True, False), (False, True), (False, False), ()],
)
def test_bfloat16_on_a_cpu_is_decided_by_its_flags(has, monkeypatch):
    """A torch that does not ask for a flag (the last case) takes float32.

    What is asked for by name is never changed.
    """
    for name, value in zip(FLAGS, has or (None, None)):
        monkeypatch.setattr(torch.cpu, name, lambda value=value: value, raising=False)
        if not has:
            monkeypatch.delattr(torch.cpu, name)
    cpu = torch.device("cpu")
    assert distributed.use_bfloat16("auto", cpu) == any(has)
    assert distributed.use_bfloat16("bfloat16", cpu) and not distributed.use_bfloat16(
        "float32", cpu
    )


def test_settings_of_a_gpu(monkeypatch):
    """The allocator's comes before the first call of CUDA, and what the user has set stays."""
    for name in (
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "CUBLAS_WORKSPACE_CONFIG",
        "WORLD_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    asked = []
    monkeypatch.setattr(
        torch.cuda,
        "is_available",
        lambda: asked.append(os.environ.get("PYTORCH_CUDA_ALLOC_CONF")) or True,
    )
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    try:
        for deterministic in (True, False):
            torch.backends.cuda.enable_cudnn_sdp(True)
            assert distributed.setup("auto", deterministic)[2].type == "cuda"
            assert (
                not torch.backends.cuda.cudnn_sdp_enabled()
                and torch.backends.cuda.flash_sdp_enabled()
            )
            assert torch.backends.cudnn.benchmark is not deterministic
        assert set(asked) == {"expandable_segments:True"}
        monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
        distributed.setup("cuda")
        assert asked[-1] is None
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
        torch.use_deterministic_algorithms(False)


def test_one_process_needs_no_group():
    assert (distributed.world_size(), distributed.rank()) == (1, 0)
    assert distributed.all_reduce({"a": 2.0}, "max") == {"a": 2.0}
    module = torch.nn.Linear(2, 2)
    assert distributed.data_parallel(module) is module
