#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. One thread a run, JOBS of them at a time.
# The bases are the strong ones of results/headline: bash results/headline/protocol.sh bases
#   bash results/fixed_set/protocol.sh mazes     128 training mazes, the held-out mazes of the usual set
#   bash results/fixed_set/protocol.sh bases     the three bases on the validation mazes: epoch 0 of the curves
#   bash results/fixed_set/protocol.sh runs      60 epochs of MaxRL, GRPO and RLOO, seeds 0 to 2
#   bash results/fixed_set/protocol.sh test      256 test mazes x 256 samples, once, of the last checkpoints and the bases
set -euo pipefail
export python=${PYTHON:-python} out=runs/fixed_set bases=runs/headline/strong OMP_NUM_THREADS=1

run() { # seed, method
    $python train.py maze9_laptop --task.directory $out/mazes --epochs 60 --estimator "$2" --lr 1e-4 --schedule constant \
        --seed "$1" --init "$bases/seed$1/base" --out "$out/seed$1-$2" \
        --eval-every 40 --eval-prompts 128 --eval-samples 64 --save-every-minutes 3 --resume auto
}
export -f run

case ${1:?one of the words at the top of this file} in
mazes)
    $python -m data.maze.prepare --size 9 --train 128 --out $out/mazes
    ;;
bases)
    $python eval.py base=$bases/seed{0,1,2}/base --split validation --prompts 128 --samples 64 --k 1,8,64 --json $out/bases.json
    ;;
runs)
    printf '%s\n' {0,1,2}" "{maxrl,grpo,rloo} | xargs -P "${JOBS:-2}" -L 1 bash -c 'set -euo pipefail; run "$@"' _
    ;;
test)
    $python eval.py base=$bases/seed{0,1,2}/base rloo=$out/seed{0,1,2}-rloo grpo=$out/seed{0,1,2}-grpo \
        maxrl=$out/seed{0,1,2}-maxrl --split test --prompts 256 --samples 256 --k 1,8,64,256 --json $out/test.json
    ;;
esac
