#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. Two runs at a time, one thread each.
#   bash results/images_laptop/protocol.sh rates             learning rates on seed 100
#   LR=0.1 bash results/images_laptop/protocol.sh compare    seeds 0, 1, 2 with the rate chosen
set -euo pipefail
python=${PYTHON:-python}
out=runs/images
export OMP_NUM_THREADS=1
methods="supervised maxrl-1024 maxrl-128 maxrl-16 grpo-1024 reinforce_mean-1024"

run() { # method-rollouts, learning rate, seed
    rollouts=${1##*-}
    [ "$rollouts" = "$1" ] && rollouts=1
    $python train.py images_laptop --estimator "${1%-*}" --rollouts "$rollouts" --lr "$2" --seed "$3" \
        --out "$out/seed$3/$1-lr$2" --resume auto
}
export -f run
export python out

case ${1:?one of the words at the top of this file} in
rates)
    for lr in 0.01 0.03 0.1 0.3 1.0; do for method in $methods; do echo "$method $lr 100"; done; done |
        xargs -P 2 -L 1 bash -c 'run "$@"' _
    $python eval.py $out/seed100/*-lr* --split validation --k 1,25 --json $out/rates.json
    ;;
compare)
    for seed in 0 1 2; do for method in $methods; do echo "$method $LR $seed"; done; done | xargs -P 2 -L 1 bash -c 'run "$@"' _
    rows=$(for method in $methods; do echo "$method=$out/seed"{0,1,2}"/$method-lr$LR"; done)
    $python eval.py $rows --split test --k 1,25 --against supervised --json $out/test.json --plot $out/coverage.png
    $python -m maxrl.plots ${rows} --panels eval/pass@1,eval/pass@25,eval/top1 --out $out/figure2.png \
        --caption "200 classes of drawn glyphs, 32x32, a small ResNet, 400 steps (reduced scale); 3 seeds, learning rate $LR"
    ;;
esac
