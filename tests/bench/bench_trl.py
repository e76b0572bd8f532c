"""The rows of bench.py about a whole step: train.py's own functions against TRL's GRPOTrainer with
transformers' generate.

Both have the same weights, prompts, numbers of prompts and rollouts, 48 forced tokens, rewards (a
quarter of each group is right), learning rate and a real AdamW step. TRL's step is from
on_step_begin to on_step_end; between two of them ours runs.
"""

import inspect
import tempfile
from dataclasses import replace

import torch

import train
from maxrl.learning.optimizer import make_optimizer
from maxrl.learning.policy import SequencePolicy
from maxrl.learning.rounds import sample
from maxrl.models.checkpoint import Checkpoint
from maxrl.run.logger import step_totals
from maxrl.run.recipes import maze9_laptop, maze17
from maxrl.sampling.rollouts import with_verdict
from maxrl.tasks.rewards import Judge
from tests.bench import bench_turns
from tests.bench.bench_text import WORDS, FreshMazes, peer, random_model
from tests.bench.bench_turns import Times, counted, row, sized, timed

TASKS = {  # recipe, size of the mazes, prompts, rollouts
    "17x17": (maze17, 17, 8, 16),
    "9x9": (maze9_laptop, 9, 16, 32),
}
NEVER = WORDS.size  # a stop token that no model draws


def our_step(cfg, task, policy):
    """A function that makes a step of train.train, without checkpoints and evaluations, and returns
    its metrics."""
    optimizer = make_optimizer(cfg, policy.model)
    examples = [task[i] for i in range(cfg.prompts)]
    numbers = iter(range(cfg.steps))

    def step():
        number = next(numbers)
        sampled = sample(cfg, policy, task.rewards, examples, number, range(cfg.prompts))
        rollouts, rewards = with_verdict(sampled.rollouts, sampled.rewards)
        advantages = train.estimate(cfg, rollouts, rewards)
        stats = train.learn(cfg, policy, optimizer, rollouts, advantages, number)
        return stats | step_totals(sampled, Judge(task)).metrics()

    return step


def policy_of(cfg, model) -> SequencePolicy:
    """The recipe's policy, none of whose responses ends before the limit."""
    # The fields of the recipe that a policy has by the same names.
    taken = inspect.signature(SequencePolicy).parameters.keys() - {"model"}
    options = {name: value for name, value in vars(cfg).items() if name in taken}
    options |= {"max_tokens": cfg.max_response, "autocast": cfg.precision == "bfloat16"}
    return SequencePolicy(Checkpoint(model, WORDS, [NEVER]), **options)


def their_trainer(cfg, task, theirs, folder, turns: int, callback):
    """TRL's trainer on the same prompts; `callback` hears of every step."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    (N,) = cfg.rollouts
    words = PreTrainedTokenizerFast(
        tokenizer_object=WORDS.backend,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        padding_side="left",
    )

    def quarter_right(prompts, **columns):
        return [float(i % N < N // 4) for i in range(len(prompts))]

    options = GRPOConfig(
        folder,
        per_device_train_batch_size=cfg.prompts * N,
        num_generations=N,
        max_completion_length=cfg.max_response,
        max_steps=1 + turns,
        learning_rate=cfg.lr,
        lr_scheduler_type="constant",
        weight_decay=cfg.weight_decay,
        max_grad_norm=cfg.max_grad_norm,
        bf16=cfg.precision == "bfloat16",
        use_cpu=bench_turns.device.type == "cpu",
        gradient_checkpointing=False,
        beta=0.0,
        temperature=1.0,
        generation_kwargs={"min_new_tokens": cfg.max_response, "eos_token_id": [2, 7]},
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    prompts = Dataset.from_list([{"prompt": task[i].prompt} for i in range(cfg.prompts)])
    others = {"processing_class": words, "callbacks": [callback]}
    return GRPOTrainer(theirs, quarter_right, options, prompts, **others)


def whole_step(size: str, dtype: str, estimator: str, turns: int) -> dict:
    from transformers import TrainerCallback

    recipe, side, P, N = TASKS[size]
    P, N, L = sized((P, N, 48), (2, 4, 6))
    cfg = replace(recipe(), prompts=P, rollouts=N, max_response=L, estimator=estimator)
    cfg = replace(cfg, precision=dtype)
    task = FreshMazes(side, P)
    model = random_model(cfg.model)
    theirs = peer(model, torch.float32).train()
    step = our_step(cfg, task, policy_of(cfg, model))
    times = Times()

    def ours():
        metrics = step()
        assert metrics["completions/min_length"] == L
        assert metrics["completions/mean_length"] == L

    flops = counted(ours)  # the warm-up

    class Turns(TrainerCallback):
        def on_step_begin(self, args, state, control, **others):
            self.begun = bench_turns.now()

        def on_step_end(self, args, state, control, **others):
            took = [after - before for after, before in zip(bench_turns.now(), self.begun)]
            if state.global_step > 1:  # the first is TRL's warm-up
                times.note("maxrl", *timed(ours))
                times.note("TRL", *took)

        def on_log(self, args, state, control, logs=None, **others):
            if "completions/mean_length" in logs:
                assert logs["completions/min_length"] == L, logs
                assert logs["completions/mean_length"] == L, logs
                assert logs["frac_reward_zero_std"] == 0, logs

    with tempfile.TemporaryDirectory() as folder:
        their_trainer(cfg, task, theirs, folder, turns, Turns()).train()
    what = f"a whole step of {P} x {N} x {L} tokens, {estimator}, a quarter right, against TRL's "
    what += "GRPOTrainer"
    return row(what, times, P * N * L, "token", dtype=dtype, rivals=["TRL"], flops=flops)
