#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. One thread a run, JOBS of them at a time.
#   bash results/order/protocol.sh scratch            exact orders 1 to 1,024, RLOO, Algorithm 1, cross-entropy (SEEDS="0 1 2")
#   bash results/order/protocol.sh bases              cross-entropy up to pass@1 .2, seeds 0, 1, 2, 100
#   bash results/order/protocol.sh rates              four learning rates from the base of seed 100
#   LR=0.3 bash results/order/protocol.sh few         2, 4 and 8 rollouts from the bases: Algorithm 1, orders N - 1 and N
#   LR=0.3 bash results/order/protocol.sh base-path   the exact orders from the bases
#   bash results/order/protocol.sh test               the test images, once
set -euo pipefail
python=${PYTHON:-python}
out=runs/order
export OMP_NUM_THREADS=1
seeds=${SEEDS:-0 1 2}

run() { # name, estimator, rollouts, seed, further options
    where=$out/seed$4/$1; estimator=$2 rollouts=$3 seed=$4
    shift 4
    $python train.py images_laptop --estimator "$estimator" --rollouts "$rollouts" --seed "$seed" --out "$where" \
        --resume auto "$@"
}
order() { # what comes before the name, order, rollouts, seed, further options
    name=$1order-$2-of-$3; T=$2 N=$3 seed=$4
    shift 4
    run "$name" maxrl_order "$N" "$seed" --estimator.order "$T" "$@"
}
export -f run order
export python out

many() { xargs -P "${JOBS:-2}" -L 1 bash -c 'set -euo pipefail; "$@"' _; }

case ${1:?one of the words at the top of this file} in
scratch)
    for seed in $seeds; do
        printf '%s\n' "run rloo-1024 rloo 1024 $seed" "run maxrl-1024 maxrl 1024 $seed" "run supervised supervised 1 $seed"
        printf '%s\n' "order '' "{1,4,16,64,256,1024}" 1024 $seed"
    done | many
    ;;
bases)
    printf '%s\n' "run base supervised 1 "{0,1,2,100}" --stop-at-pass .2" | many
    ;;
rates)
    printf '%s\n' {0.03,0.1,0.3,1.0} | sed "s|.*|run maxrl-4-lr& maxrl 4 100 --init $out/seed100/base --lr &|" | many
    ;;
few)
    for seed in $seeds; do
        for N in 2 4 8; do
            from="--init $out/seed$seed/base --lr $LR"
            echo "run few-maxrl-$N maxrl $N $seed $from"
            echo "order few- $((N - 1)) $N $seed $from"
            echo "order few- $N $N $seed $from"
        done
    done | many
    ;;
base-path)
    for seed in $seeds; do
        from="--init $out/seed$seed/base --lr $LR"
        printf '%s\n' "order from-base- "{1,4,16,64,256,1024}" 1024 $seed $from" "run from-base-supervised supervised 1 $seed $from"
    done | many
    ;;
test)
    rows=$(for folder in $out/seed[012]/*; do echo "$(basename "$folder")=$folder"; done)
    $python eval.py $rows --split test --k 1,25 --against supervised --json $out/test.json
    ;;
esac
