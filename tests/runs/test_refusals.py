"""What the scripts refuse: with code 2 and one sentence, before any work."""

from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.runs import refused
from tests.helpers.tables import each

# A command, and words of its sentence. CODE is a file with a function that takes no argument.
TABLE = """
train.py nothing | no recipe is called 'nothing' | maze17_sft
train.py tiny --prompts many | --prompts: 'many' cannot be read: expected int
train.py tiny --lr fast | --lr: 'fast' cannot be read: expected float
train.py tiny --betas 0.9;0.95 | expected float
train.py tiny --eval-k 1 8 | 8 is not an option; lists are written with commas
train.py tiny --zero-reward-at-limit yes | expected true or false
train.py tiny --prompts | --prompts: expected one argument
train.py tiny --prompts --lr 1 | --prompts: expected one argument
train.py tiny 8 | 8 is not an option
train.py tiny --prompt 8 | --prompt is not an option; did you mean --prompts
train.py tiny --eval_k 1 | did you mean --eval-k
train.py maze9_laptop_sft --dry-run --gpus 0 | cannot be divided by --gpus 0
train.py tiny --model x | --model is not an option
train.py tiny --task_options x | is not an option
train.py tiny --learning-rate 1 | --learning-rate is not an option; it is --lr
train.py tiny --learning_rate 1 | it is --lr
train.py tiny --max-completion-length 9 | it is --max-response
train.py tiny --max-steps 9 | it is --steps, counted in updates
train.py tiny --use-vllm true | rollouts come from the trained model itself
train.py tiny --estimator max_rl | no estimator is called 'max_rl'; did you mean maxrl
train.py tiny --estimator maxrl --estimator.order 4 | takes no option 'order' | maxrl_order
train.py tiny --estimator pkpo | --estimator.k
train.py prompt | no recipe is called 'prompt'; did you mean prompts?
train.py tiny --task mase | task 'mase' is unknown; did you mean maze
train.py tiny --task.sise 9 | task maze takes no option 'sise'; did you mean size?
train.py tiny --optimizer.lr x | --optimizer.lr is not an option
train.py tiny --prompts 0 | --prompts 0 must be above 0
train.py tiny --rollouts 8,0 | --rollouts 0 must be above 0
train.py tiny --rollouts 1e1,2 | expected int
train.py tiny --steps 9223372036854775807 | --steps 9223372036854775807 must be at most
train.py tiny --eval-samples 2147483648 | --eval-samples 2147483648 must be at most
train.py tiny --prompts 99999999 | --prompts 99999999 must be at most
train.py tiny --seed 99999999999 | --seed 99999999999 must be at most
train.py tiny --lr -1 | --lr -1.0 must not be negative
train.py tiny --lr nan | --lr nan must be finite
train.py tiny --lr inf | --lr inf must be finite
train.py tiny --clip nan,0.2 | --clip cannot be (nan, 0.2)
train.py tiny --clip 0,0.2 | --clip 0.0 must be above 0
train.py tiny --clip 1.5,0.2 | --clip takes two numbers | 1.5,0.2
train.py tiny --minibatches 3 | --minibatches 3 must divide the 16 prompts
train.py tiny --temperature 0.9 | --temperature is not an option
train.py tiny --top-p=0.95 | --top-p is not an option
train.py tiny --top-k 5 | --top-k is not an option
train.py tiny --eval-temperature -1 | --eval-temperature -1.0
train.py tiny --eval-top-p 1.5 | --eval-top-p 1.5 must be at most 1
train.py tiny --aggregation mean | --aggregation mean is not one of sequence, token, constant
train.py tiny --device tpu | --device tpu is not one of auto, cpu, cuda
train.py tiny --betas 0.9 | --betas takes two numbers
train.py tiny --betas 1.0,0.9 | two numbers in [0, 1), not 1.0,0.9
train.py tiny --momentum 1 | --momentum 1.0 must lie in [0, 1)
train.py tiny --beta 0.1 | --beta means nothing without --init
train.py tiny --lora-alpha 1 | --lora-alpha means nothing without --lora-rank
train.py tiny --muon-lr-scale 9 | --muon-lr-scale means nothing without --optimizer muon
train.py tiny --clip 0.1,0.1 | --clip means nothing without --minibatches
train.py tiny --decay-ratio 0.1 | --decay-ratio means nothing without --schedule
train.py tiny --momentum 0.5 | --momentum means nothing without --optimizer sgd
train.py tiny --optimizer sgd --betas 0.9,0.9 | --betas means nothing without --optimizer adamw
train.py tiny --eval-every 0 --eval-from 2 | --eval-from means nothing without --eval-every
train.py tiny --lora-projections q_proj | --lora-projections means nothing without --lora-rank
train.py tiny --eval-k 0,8 | --eval-k 0 must be above 0
train.py tiny --eval-every 1 --eval-prompts 0 | --eval-prompts 0 must be above 0
train.py tiny --eval-every 1 --eval-k 128 | needs at least as many --eval-samples
train.py tiny --eval-every 1 --eval-samples 0 --init WARM | --eval-samples 0
train.py tiny --stop-at-pass 7 | --stop-at-pass 7.0 must be at most 1
train.py tiny --stop-at-pass 0.5 | needs --eval-every
train.py tiny --steps 100 --epochs 3 | --steps and --epochs say the same thing twice
train.py tiny --estimator maxrl_order --estimator.order 99 | order=99 | order <= N = 16
train.py tiny --estimator maxrl_order | maxrl_order needs order
train.py tiny --estimator grpo --rollouts 1 | grpo | at least 2 rollouts
train.py tiny --estimator maxrI | no estimator is called 'maxrI' | maxrl
train.py tiny --estimator pkpo | pkpo needs k
train.py tiny --estimator pkpo --estimator.k 99 | k=99 | N = 16
train.py tiny --estimator supervised --rollouts 1 --passes 2 | supervised takes no --minibatches
train.py tiny --estimator rloo --estimator.order 3 | rloo takes no option 'order'
train.py tiny --estimator supervised --rollouts 4 | use --rollouts 1
train.py tiny --estimator maxrl --rollouts 1,1,2 | maxrl_success or maxrl_rare
train.py tiny --estimator grpo --rollouts 1,1,2 | grpo
train.py tiny --estimator maxrl_rare --rollouts 1,1,2 --estimator.order 2 | order
train.py tiny --estimator maxrl_success --rollouts 1,1 --thresholds true | thresholds
train.py tiny --rollouts 4,x | --rollouts: '4,x'
train.py tiny --task mazes | task 'mazes' is unknown
train.py tiny --task nosuch:Thing | cannot be imported
train.py tiny --task maxrl.tasks.maze:Thing | has no function or class Thing
train.py tiny --task.size 8 | odd number
train.py tiny --task.directory nowhere | python -m data.maze.prepare --size 7 | nowhere
train.py tiny --init nowhere --out mine/a/b | nowhere is neither a checkpoint
train.py tiny --max-response 100 | prompt of 60 tokens and a response of up to 100 exceed
train.py tiny --shard true | start with torchrun
train.py tiny --out new --resume yes | no checkpoint to resume from
train.py tiny --gpus 2 | --gpus belongs to --dry-run
train.py --dry-run | no recipe is called ''
train.py polaris9 --dry-run | no recipe is called 'polaris9'
train.py maze17 --dry-run --gpus 3 | --prompts 32 cannot be divided by --gpus 3
train.py glyphs --dry-run | estimates language models
train.py prompts --dry-run --estimator.ordr 4 | maxrl takes no option 'ordr'
train.py prompts --dry-run --estimator maxrl_order --estimator.order 400 | --estimator maxrl_order
train.py prompts --dry-run --estimator supervised --rollouts 2 | use --rollouts 1
train.py far/recipe.json | far/recipe.json
train.py glyphs --init WARM | language model
train.py glyphs --micro-batch-tokens 100 | --micro-batch-tokens 100 | a classifier
train.py glyphs --max-response 10 | --max-response 10 | a classifier
train.py glyphs --zero-reward-at-limit true | --zero-reward-at-limit
train.py glyphs --eval-every 5 --eval-samples 4 | --eval-samples 4 | exact
train.py glyphs --task.directory glyphs/no | python -m results.images.glyphs | glyphs/no
train.py glyphs --task.size 0 | at least 1
train.py glyphs --optimizer lion | --optimizer lion | adamw, sgd
train.py glyphs --optimizer muon | --optimizer muon | a classifier
train.py tiny --init WARM --lora-rank 2 --optimizer muon | --optimizer muon | --lora-rank
train.py glyphs --workers -1 | --workers -1
train.py glyphs --shard true | --shard True means nothing to a classifier: leave it
train.py glyphs --estimator supervised --rollouts 8 | use --rollouts 1
train.py glyphs --estimator maxrl_rare --rollouts 2,4 | --rollouts 2,4 | a classifier
eval.py nowhere | nowhere is neither a checkpoint
eval.py warm=WARM --samples 8 --k 16 | pass@16 needs at least as many samples
eval.py warm=WARM --samples 8 --k 1 8 | 8 is not an option
eval.py warm=WARM --samples 8 --k 0 | --k 0 must be at least 1
eval.py warm=WARM --samples 0 --k 1 | at least 1
eval.py warm=WARM --samples 2147483648 | --samples 2147483648 must be at most
eval.py warm=WARM --top-p 0 | top-p 0.0 must be above 0
eval.py warm=WARM --temperature -1 | temperature -1.0 must not be negative
eval.py warm=WARM --against nobody | --against nobody is not one of the rows warm
eval.py warm=WARM --json no/where.json | mkdir -p no
eval.py warm=WARM --plot curve | curve is no figure: use a name that ends in .png
eval.py warm=WARM --samples 8 --nonsense 3 | --nonsense is not an option
eval.py warm=WARM --sample 3 | --sample is not an option; did you mean --samples
eval.py warm=WARM --max-completion-length 3 | it is --max-response
eval.py warm=WARM --num-generations 3 | --num-generations is not an option | --help
eval.py warm=WARM --task maze --task.size 6 | odd number
eval.py warm=WARM --task.directory nowhere | python -m data.maze.prepare
eval.py warm=WARM --max-response 1000 | 1000 exceed the model's 128 positions
sample.py nowhere | nowhere is neither a checkpoint
sample.py WARM --rollouts 8 | --rollouts is not an option
sample.py WARM --prompt 8 | did you mean --prompts
data/maze/prepare.py --sise 7 | did you mean --size?
maxrl/run/grid.py nope --seed 0 | no recipe is called 'nope'
maxrl/run/grid.py CODE --seed 0 | raised TypeError
maxrl/run/grid.py tiny --sede 0,1 | --sede is not an option; did you mean --seed
maxrl/run/grid.py tiny --dry-run | --dry-run is not an option | --help
maxrl/run/grid.py tiny --learning-rate 1,2 | it is --lr
maxrl/run/merge.py WARM --outt x | --outt is not an option
maxrl/analysis/plots.py WARM --out w.png --panel kl | did you mean --panels?
maxrl/analysis/report.py WARM --ouy w.html | did you mean --out?
maxrl/analysis/toy.py --estimators maxrl | did you mean --estimator?
maxrl/run/grid.py tiny --lr 1e-5,quick | --lr: 'quick' cannot be read
maxrl/run/grid.py tiny --estimator maxrl,grop | no estimator is called 'grop'
maxrl/run/grid.py tiny --task.directory a/b,a_b | two runs would be called
maxrl/run/grid.py tiny --parallel 0 | --parallel 0
maxrl/analysis/plots.py nowhere --out curves.png | nowhere is no run directory
maxrl/analysis/plots.py nowhere --out curves.xyz | curves.xyz is no figure
maxrl/analysis/plots.py WARM --panels kl --out w.png | kl is in none
maxrl/analysis/plots.py --out w.png | either runs or estimators
maxrl/analysis/plots.py --weights maxlr --out w.png | no estimator is called 'maxlr'
maxrl/analysis/plots.py --weights maxrl_order --out w.png | maxrl_order: maxrl_order needs order=
maxrl/analysis/plots.py --weights rloo --rollouts 1 --out w.png | at least 2 rollouts
maxrl/analysis/plots.py --weights a/x.py:f,b/x.py:f --out w.png | two curves | x.py:f
maxrl/analysis/plots.py --weights maxrl --rollouts -2 --out w.png | --rollouts -2
maxrl/analysis/plots.py --weights maxrl --rollouts 1000000 --out w.png | --rollouts 1000000
maxrl/analysis/toy.py --estimator maxlr | no estimator is called 'maxlr'
maxrl/analysis/toy.py --estimator rloo,a/x.py:f,b/x.py:f | two curves | x.py:f
maxrl/analysis/toy.py --estimator supervised | supervised has no weight
maxrl/analysis/toy.py --rollouts 3 | order=4
maxrl/analysis/toy.py --rollouts -1 | --rollouts -1
maxrl/analysis/toy.py --steps -3 | --steps -3
maxrl/analysis/toy.py --rollouts 10000000 | --rollouts 10000000
maxrl/minimal.py ppo | ppo
maxrl/analysis/report.py nowhere | nowhere is no run directory
"""


@pytest.mark.usefixtures("recipe")
@each("row", TABLE)
def test_refusals(shell, warm, row):
    command, *words = row
    known = command.replace("WARM", str(warm))
    known = known.replace("CODE", f"{ROOT}/tests/helpers/runs.py:metrics")
    refused(shell(*known.split()), *words)
    assert not list(Path().iterdir())
