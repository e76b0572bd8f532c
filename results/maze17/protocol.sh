#!/usr/bin/env bash
# README.md's protocols as commands (and base/'s); every run resumes where it was interrupted. One thread a run.
#   bash results/maze17/protocol.sh bases                 seeds 0 to 2 of the warm-up, two at a time, each with its test
#   bash results/maze17/protocol.sh data                  mazes of RL
#   bash results/maze17/protocol.sh base                  the base of RL: seed 2 once more, which results/maze17/base has
#   bash results/maze17/protocol.sh run SEED ESTIMATOR    at most MINUTES of it (150)
#   bash results/maze17/protocol.sh test NAME             of a run that has ended, seed0-grpo, or of the base
set -euo pipefail
export python=${PYTHON:-python} OMP_NUM_THREADS=1
out=runs/maze17_rl
base=${BASE:-results/maze17/base}
mazes=data/maze/17x17-rl

warm_up() { # seed
    folder=runs/maze17_base/seed$1
    $python train.py maze17_sft --seed "$1" --precision bfloat16 --out "$folder" --resume auto
    $python eval.py "$folder" --split test --prompts 256 --samples 256 --k 1,32,128,256 --precision bfloat16 \
        --json "$folder/test.json"
}
export -f warm_up

case ${1:?one of the words at the top of this file} in
bases)
    printf '%s\n' 0 1 2 | xargs -P 2 -L 1 bash -c 'set -euo pipefail; warm_up "$@"' _
    ;;
data)
    $python -m data.maze.prepare --size 17 --train 100000
    $python -m data.maze.prepare --size 17 --seed 1 --train 100000 --out $mazes
    ;;
base)
    $python train.py maze17_sft --seed 2 --precision bfloat16 --out $out/base --resume auto
    ;;
run)
    rollouts=32
    if [ "$3" = maxrl_rare ]; then rollouts=8,8,16; fi
    # Code 75: asked to end, it has saved.
    timeout -s TERM "$((${MINUTES:-150} * 60))" $python train.py maze17 --task.directory $mazes --estimator "$3" --seed "$2" \
        --rollouts $rollouts --init "$base" --out "$out/seed$2-$3" --steps 1000 --precision bfloat16 --micro-batch-tokens 8192 \
        --eval-every 0 --save-every 0 --save-every-minutes 5 --keep 1 --resume auto || { code=$?; [ $code = 75 ]; }
    ;;
test)
    checkpoint=$out/$2
    if [ "$2" = base ]; then checkpoint=$base; fi
    mkdir -p $out/test
    $python eval.py "$2=$checkpoint" --task maze --task.size 17 --task.directory $mazes --split test --prompts 256 --samples 256 \
        --k 1,32,128,256 --precision bfloat16 --json "$out/test/$2.json"
    ;;
esac
