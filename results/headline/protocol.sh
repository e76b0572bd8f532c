#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. One thread a run, JOBS of them at a time.
#   bash results/headline/protocol.sh bases      warm-ups: weak (pass@1 .015) and strong (.08)
#   bash results/headline/protocol.sh one-rate   1e-4 for all methods, the paper's: weak base seeds 0-4, strong base seeds 0-2
#   bash results/headline/protocol.sh rates      four rates per method at full length, weak base, seeds 100 and 101
#   bash results/headline/protocol.sh own-rate   every method at the rate chosen (MAXRL=, GRPO=, RLOO=), weak base, seeds 0-2
#   bash results/headline/protocol.sh clipping   MaxRL and GRPO without norm clipping, weak base, seed 3
#   bash results/headline/protocol.sh test weak  256 test mazes x 512 samples, once, of the seeds that have all methods; and strong
set -euo pipefail
python=${PYTHON:-python}
out=runs/headline
export OMP_NUM_THREADS=1

base() { # weak or strong, seed
    level=.015
    if [ "$1" = strong ]; then level=.08; fi
    $python train.py maze9_laptop_sft --seed "$2" --stop-at-pass $level --out "$out/$1/seed$2/base" --resume auto
}
run() { # weak or strong, seed, method, learning rate, what to add to the run's name, its options
    from=$out/$1/seed$2; estimator=$3 rate=$4 name=$3-lr$4$5
    shift 5
    $python train.py maze9_laptop --steps 1000 --estimator "$estimator" --lr "$rate" --seed "${from##*seed}" --init "$from/base" \
        --out "$from/$name" --eval-every 100 --save-every-minutes 3 --resume auto "$@"
}
export -f base run
export python out

many() { xargs -P "${JOBS:-2}" -L 1 bash -c 'set -euo pipefail; "$@"' _; }

case ${1:?one of the words at the top of this file} in
bases)
    $python -m data.maze.prepare --size 9 --train 70000
    printf '%s\n' "base weak "{0,1,2,3,4,100,101} "base strong "{0,1,2} | many
    ;;
one-rate)
    printf '%s\n' "run weak "{0,1,2}" "{maxrl,grpo,rloo}" 1e-4 ''" "run strong "{0,1,2}" "{maxrl,grpo,rloo}" 1e-4 ''" \
        "run weak "{3,4}" "{maxrl,grpo,rloo}" 1e-4 ''" | many
    ;;
rates)
    printf '%s\n' "run weak "{100,101}" "{maxrl,grpo,rloo}" "{3e-5,1e-4,3e-4,1e-3}" ''" | many
    ;;
own-rate)
    printf '%s\n' "run weak "{0,1,2}" maxrl $MAXRL ''" "run weak "{0,1,2}" grpo $GRPO ''" "run weak "{0,1,2}" rloo $RLOO ''" | many
    ;;
clipping)
    printf '%s\n' "run weak 3 "{maxrl,grpo}" 1e-4 -unclipped --max-grad-norm 1e9" | many
    ;;
test)
    # weak or strong: the seeds that have all three methods at one rate, each with its base.
    runs=()
    for folder in $out/$2/seed[0-4]; do
        for method in maxrl grpo rloo; do
            [ "$(cat "$folder/$method-lr1e-4/latest" 2>/dev/null)" = step-001000 ] || continue 2
        done
        runs+=("base=$folder/base" "rloo=$folder/rloo-lr1e-4" "grpo=$folder/grpo-lr1e-4" "maxrl=$folder/maxrl-lr1e-4")
    done
    [ ${#runs[@]} -gt 0 ] || { echo "no seed of the $2 base has all three methods after 1,000 steps: one-rate runs them"; exit 2; }
    $python eval.py "${runs[@]}" --split test --prompts 256 --samples 512 --k 1,8,64,256,512 --json "$out/$2-test.json"
    ;;
esac
