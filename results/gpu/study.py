"""What to run on a GPU first, in this order. Nothing of it has run."""

from results.lab.runs import evaluation, product

MAZES = "--task.directory data/maze/17x17"
RL = (
    f"train.py maze17 {MAZES} --estimator {{method}} --init runs/gpu/base --prompts 256 "
    "--rollouts 32 --steps 9000 --eval-every 0 --save-every 0 --wave-rows 8192 --keep 1"
)
GLYPHS = (
    "train.py imagenet --task.directory glyphs/1000x64 --task.size 64 --task.augment false "
    "--steps 8000 --warmup-steps 100 --eval-every 1000 --eval-prompts 5000 --workers 4"
)
METHODS = ("rloo", "grpo", "maxrl")
IMAGES = (("supervised", 1), ("maxrl", 1024), ("maxrl", 128), ("grpo", 1024))
RUNS = {
    "maze17-sft": product("base", f"train.py maze17_sft {MAZES}"),
    "maze17": product("{method}", RL, method=METHODS),
    "images": product(
        "images/{arm[0]}-{arm[1]}",
        f"{GLYPHS} --estimator {{arm[0]}} --rollouts {{arm[1]}}",
        arm=IMAGES,
    ),
}
# The number that each should reach.
PLANNED = {
    "maze17-sft": "pass@1 of .012 or a little more",
    "maze17": "Figures 12 and 17: at step 800 prompts with a success .6 (GRPO and RLOO below .25), "
    "at step 1,000 pass@1 .25, .23 (GRPO) and .10 (RLOO)",
    "images": "MaxRL with 1,024 rollouts ends near cross-entropy, with 128 below it (ImageNet: "
    "60.2 and 37.7 against 60.6 %), GRPO behind",
}
TESTS = {
    "maze17.json": evaluation(
        "--split validation --prompts 256 --samples 256 --k 1,32,128,256",
        {name: f"gpu/{name}" for name in ("base", *METHODS)},
    )
}
