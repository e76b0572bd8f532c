#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. Two runs at a time, one thread each.
#   bash results/maze9_laptop/protocol.sh rates        learning rates on seed 100
#   bash results/maze9_laptop/protocol.sh compare      seeds 0, 1, 2 with the rates chosen (MAXRL=, GRPO=, RLOO=)
set -euo pipefail
python=${PYTHON:-python}
out=runs/protocol
export OMP_NUM_THREADS=1

warm_up() {
    $python train.py maze9_laptop_sft --seed "$1" --stop-at-pass 0.08 --eval-every 20 --out $out/seed$1/base --resume auto
}
run() { # estimator, learning rate, seed
    $python train.py maze9_laptop --steps 160 --schedule constant --eval-every 40 --estimator "$1" --lr "$2" --seed "$3" --init $out/seed$3/base --out "$out/seed$3/$1-lr$2" --resume auto
}
export -f warm_up run
export python out

case ${1:?one of the words at the top of this file} in
rates)
    warm_up 100
    printf '%s\n' {maxrl,grpo,rloo}" "{3e-5,1e-4,3e-4}" 100" | xargs -P 2 -L 1 bash -c 'run "$@"' _
    OMP_NUM_THREADS=2 $python eval.py $out/seed100/base $out/seed100/{maxrl,grpo,rloo}-lr{3e-5,1e-4,3e-4} \
        --split validation --prompts 256 --samples 128 --json $out/rates.json
    ;;
compare)
    printf '%s\n' 0 1 2 | xargs -P 2 -L 1 bash -c 'warm_up "$@"' _
    printf '%s\n' "maxrl $MAXRL "{0,1,2} "grpo $GRPO "{0,1,2} "rloo $RLOO "{0,1,2} | xargs -P 2 -L 1 bash -c 'run "$@"' _
    OMP_NUM_THREADS=2 $python eval.py base=$out/seed{0,1,2}/base rloo=$out/seed{0,1,2}/rloo-lr$RLOO grpo=$out/seed{0,1,2}/grpo-lr$GRPO \
        maxrl=$out/seed{0,1,2}/maxrl-lr$MAXRL --split test --prompts 256 --samples 128 \
        --json $out/test.json --plot $out/test.png
    ;;
esac
