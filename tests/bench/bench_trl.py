"""The rows of bench.py about a whole step: train.py's own functions against TRL's GRPOTrainer with
transformers' generate.

Both have the same weights, prompts, numbers of prompts and rollouts, 48 forced tokens, rewards (a
quarter of each group is right), learning rate and a real AdamW step. TRL's step is from
on_step_begin to on_step_end; between two of them ours runs.
"""

import tempfile
from dataclasses import replace

import bench_turns
import torch
from bench_text import FreshMazes, peer, random_model
from bench_turns import Times, counted, row, sized, take_turns, timed

import train
from data.maze.prepare import main as prepare
from maxrl import build
from maxrl.advantages import ADVANTAGES
from maxrl.io.tokenizer import Tokenizer
from maxrl.recipes import maze9_laptop, maze17
from maxrl.rollouts import with_verdict
from maxrl.rounds import way_of_sampling
from maxrl.run import setup
from maxrl.run.logger import step_metrics
from maxrl.tasks.maze import VOCABULARY

TASKS = {
    "17x17": (maze17, 17, 8, 16),
    "9x9": (maze9_laptop, 9, 16, 32),
}  # recipe, size of the mazes, prompts, rollouts


def our_step(cfg, task, policy):
    """A function that makes a step of train.train, without checkpoints and evaluations, and returns
    its metrics."""
    optimizer = build.make_optimizer(cfg, policy.model)
    examples = [task[i] for i in range(cfg.prompts)]
    steps = iter(range(cfg.steps))
    sample = way_of_sampling(cfg, policy.rollout, task.rewards, range(cfg.prompts))

    def step():
        now = next(steps)
        sampled = sample(examples, now)
        judged, rewards = with_verdict(sampled.rollouts, sampled.rewards)
        advantages = ADVANTAGES[cfg.estimator](rewards, **setup.estimator_options(cfg, judged))
        stats = policy.backward(judged, advantages)
        return (
            stats | train.update(cfg, policy, optimizer, stats, now) | step_metrics(sampled, None)
        )

    return step


def their_trainer(cfg, task, theirs, tokenizer, folder, turns: int, callback):
    """TRL's trainer on the same prompts; `callback` hears of every step."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    (N,) = cfg.rollouts
    rows = cfg.prompts * N
    words = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
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
        per_device_train_batch_size=rows,
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
    return GRPOTrainer(
        theirs, quarter_right, options, prompts, processing_class=words, callbacks=[callback]
    )


def whole_step(size: str, dtype: str, estimator: str, turns: int) -> dict:
    from transformers import TrainerCallback

    recipe, side, P, N = TASKS[size]
    P, N, L = sized((P, N, 48), (2, 4, 6))
    cfg = replace(
        recipe(), prompts=P, rollouts=N, max_response=L, precision=dtype, estimator=estimator
    )
    task, tokenizer, model = (
        FreshMazes(side, P),
        Tokenizer.from_vocabulary(VOCABULARY),
        random_model(cfg.model),
    )
    task.stop_tokens = ()
    theirs = peer(model, torch.float32).train()
    never = len(VOCABULARY)  # a stop token that no model draws
    device = bench_turns.device
    options = setup.policy_options(cfg, task, device)
    policy = build.make_policy(model, tokenizer, [never], task, device, **options)
    step = our_step(cfg, task, policy)

    def ours():
        metrics = step()
        assert metrics["completions/min_length"] == L == metrics["completions/mean_length"]

    times = Times()
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
                assert logs["completions/mean_length"] == logs["completions/min_length"] == L, logs
                assert logs["frac_reward_zero_std"] == 0, logs

    with tempfile.TemporaryDirectory() as folder:
        their_trainer(cfg, task, theirs, tokenizer, folder, turns, Turns()).train()
    what = f"a whole step of {P} x {N} x {L} tokens, {estimator}, against TRL's GRPOTrainer"
    return row(what, times, P * N * L, "token", dtype=dtype, rivals=["TRL"], flops=flops)


def rounds(turns: int) -> dict:
    """A step of order 128 on 9x9 mazes, in rounds and at once, from a model that is right at one
    try in .15 of them."""
    with tempfile.TemporaryDirectory() as folder:
        mazes, warm = f"{folder}/9x9", f"{folder}/warm"
        count, until = sized((20_000, ["--stop-at-pass", ".15"]), (64, ["--steps", "1"]))
        prepare(["--size", "9", "--train", str(count), "--out", mazes])
        train.main(["maze9_laptop_sft", "--task.directory", mazes, *until, "--out", warm])
        usual = replace(
            maze9_laptop(),
            init=warm,
            prompts=sized(16, 2),
            task_options={"size": 9, "directory": mazes},
        )
        contestants, found = {}, {}
        for who, estimator, sizes in (
            ("rounds", "maxrl_rare", sized((8, 8, 16, 32, 64), (2, 2, 4))),
            ("at once", "maxrl", sized(128, 8)),
        ):
            cfg = replace(usual, estimator=estimator, rollouts=sizes)
            task, _ = setup.load_splits(replace(cfg, eval_every=0))
            step = our_step(
                cfg, task, setup.start_policy(cfg, task, None, None, bench_turns.device)
            )
            contestants[who] = lambda who=who, step=step: found.__setitem__(who, step())
        times, flops = take_turns(contestants, turns)
    what = "a step of order 128 and 127, 16 prompts of 9x9: rounds of 8, 8, 16, 32, 64 with "
    what += "maxrl_rare, 128 at once with maxrl"
    said = {
        who: {name: metrics[name] for name in ("reward", "rollouts", "tokens")}
        for who, metrics in found.items()
    }
    return row(what, times, 1, "step", dtype="float32", rivals=["at once"], flops=flops, found=said)
