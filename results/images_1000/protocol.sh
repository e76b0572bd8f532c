#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. One thread a run, JOBS of them at a time.
#   bash results/images_1000/protocol.sh data              the images
#   bash results/images_1000/protocol.sh rates             cross-entropy on seed 100, five learning rates
#   LR=3.0 bash results/images_1000/protocol.sh compare    seven methods with the rate chosen (SEEDS=, METHODS= some of them)
#   LR=3.0 bash results/images_1000/protocol.sh lower      MaxRL with a third of that rate, seed 0
#   bash results/images_1000/protocol.sh few               200 classes at the paper's rollouts per class; needs the runs of
#                                                          results/order/protocol.sh scratch
#   LR=3.0 bash results/images_1000/protocol.sh test       the test images, once
#   LR=3.0 bash results/images_1000/protocol.sh norms      gradient norms of the seven models, seeds 0 to 2
set -euo pipefail
python=${PYTHON:-python}
out=runs/images_1000
export OMP_NUM_THREADS=1
methods=${METHODS:-supervised maxrl-1024 maxrl-128 maxrl-16 grpo-1024 grpo-128 reinforce_mean-1024}
seeds=${SEEDS:-0 1 2}

run() { # method-rollouts, learning rate, seed
    rollouts=${1##*-}
    if [ "$rollouts" = "$1" ]; then rollouts=1; fi
    $python train.py images_laptop --task.directory glyphs/1000x32 --estimator "${1%-*}" --rollouts "$rollouts" --lr "$2" \
        --seed "$3" --steps 2000 --warmup-steps 100 --eval-every 100 --eval-prompts 2500 --eval-k 1,128 --save-every 1000 \
        --save-every-minutes 3 --out "$out/seed$3/$1-lr$2" --resume auto
}
few() { # rollouts, seed
    $python train.py images_laptop --rollouts "$1" --seed "$2" --out "$out/200/seed$2/maxrl-$1" --resume auto
}
export -f run few
export python out

many() { xargs -P "${JOBS:-2}" -L 1 bash -c 'set -euo pipefail; "$@"' _; }

case ${1:?one of the words at the top of this file} in
data)
    $python -m data.glyphs.prepare --classes 1000 --size 32 --train 100000 --validation 2500 --test 2500
    $python -m data.glyphs.prepare
    ;;
rates)
    printf '%s\n' "run supervised "{0.1,0.3,1.0,3.0,10.0}" 100" | many
    ;;
compare)
    for seed in $seeds; do for method in $methods; do echo "run $method $LR $seed"; done; done | many
    ;;
lower)
    third=$($python -c "print(round($LR / 3, 1))")
    printf '%s\n' "run maxrl-"{1024,128}" $third 0" | many
    ;;
few)
    for seed in $seeds; do printf '%s\n' "few "{205,26,3}" $seed"; done | many
    ;;
test)
    rows=$(for method in $methods; do echo "$method=$out/seed"{0,1,2}"/$method-lr$LR"; done)
    $python eval.py $rows --split test --k 1,2,8,32,128,512 --against supervised --json $out/test.json
    rows=$(for method in supervised maxrl-1024; do echo "$method=runs/order/seed"{0,1,2}"/$method"; done)
    rows+=$(for n in 205 26 3; do echo " maxrl-$n=$out/200/seed"{0,1,2}"/maxrl-$n"; done)
    $python eval.py $rows --split test --k 1,25 --against supervised --json $out/test200.json
    ;;
norms)
    # An estimator's exact weight belongs to one number of rollouts: a command for each.
    for step in 001000 002000; do
        for n in 1024 128 16; do
            rows=$(for method in $methods; do
                if [[ $method = *-$n || ($n = 1024 && $method = supervised) ]]; then
                    echo "$method=$out/seed"{0,1,2}"/$method-lr$LR/step-$step"
                fi
            done)
            PYTHONPATH=. $python results/norms.py $rows --split validation --rollouts $n --prompts 1000 --json $out/norms-$step-$n.json
        done
    done
    ;;
esac
