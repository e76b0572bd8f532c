#!/usr/bin/env bash
# The protocols of README.md as commands, and those of pages that have been run since (images, order, majority). Every run
# resumes where it was interrupted. One thread a run, JOBS of them at a time.
#   bash results/planned/protocol.sh baselines   PKPO, differential smoothing, GRPO with an entropy bonus: runs, then their test
#   bash results/planned/protocol.sh rollouts    4, 8, 16 and 64 rollouts
#   bash results/planned/protocol.sh batch       64 prompts x 32 rollouts, seed 0
#   bash results/planned/protocol.sh repeats     fixed_set's runs on mazes that never repeat
#   bash results/planned/protocol.sh images      cross-entropy and MaxRL on 1,000 classes for 8,000 steps, then their test
#   bash results/planned/protocol.sh order       orders 1 and 1,024 from the trained models, three rates each, then their test
#   bash results/planned/protocol.sh majority    majority vote on generated word problems: bases, runs, test
# They start from what other protocols make: bases of results/headline (bases) and results/order (bases), images of
# results/images_1000 (data).
set -euo pipefail
export python=${PYTHON:-python} out=runs/planned OMP_NUM_THREADS=1

mazes() { # weak or strong, seed, name, options
    base=runs/headline/$1/seed$2/base seed=$2 name=$3
    shift 3
    $python train.py maze9_laptop --lr 1e-4 --seed "$seed" --init "$base" --out "$out/mazes/seed$seed-$name" \
        --eval-every 100 --save-every-minutes 3 --resume auto "$@"
}
images() { # method, rollouts, seed
    $python train.py images_laptop --task.directory glyphs/1000x32 --estimator "$1" --rollouts "$2" --lr 3.0 --seed "$3" \
        --steps 8000 --warmup-steps 400 --eval-every 400 --eval-prompts 2500 --eval-k 1,128 --save-every-minutes 3 \
        --out "$out/images/seed$3/$1" --resume auto
}
order() { # order, learning rate, seed
    $python train.py images_laptop --estimator maxrl_order --estimator.order "$1" --rollouts 1024 --lr "$2" --seed "$3" \
        --init "runs/order/seed$3/base" --out "$out/order/seed$3/order-$1-lr$2" --resume auto
}
words_base() { # seed
    $python train.py gsm8k_laptop_sft --seed "$1" --out "$out/words$1/base" --resume auto
}
words() { # seed, method
    $python train.py gsm8k_laptop --estimator "$2" --seed "$1" --init "$out/words$1/base" --out "$out/words$1/$2" \
        --save-every-minutes 3 --resume auto
}
export -f mazes images order words_base words
many() { xargs -P "${JOBS:-2}" -L 1 bash -c 'set -euo pipefail; "$@"' _; }

case ${1:?one of the words at the top of this file} in
baselines)
    printf '%s\n' "mazes weak "{0,1,2}" pkpo --steps 1000 --estimator pkpo --estimator.k 8" \
        "mazes weak "{0,1,2}" smoothing --steps 1000 --estimator differential_smoothing --estimator.gamma .05" \
        "mazes weak "{0,1,2}" entropy --steps 1000 --estimator grpo --entropy-bonus .01" | many
    $python eval.py pkpo=$out/mazes/seed{0,1,2}-pkpo smoothing=$out/mazes/seed{0,1,2}-smoothing \
        entropy=$out/mazes/seed{0,1,2}-entropy --split test --prompts 256 --samples 256 --k 1,8,64,256 --json $out/baselines.json
    ;;
rollouts)
    for seed in 0 1; do for method in maxrl grpo rloo; do for n in 4 8 16 64; do
        echo "mazes weak $seed $method-$n --steps 500 --schedule constant --rollouts $n --estimator $method"
    done; done; done | many
    ;;
batch)
    printf '%s\n' {maxrl,grpo,rloo} | sed 's/.*/mazes weak 0 &-64x32 --steps 1000 --prompts 64 --estimator &/' | many
    ;;
repeats)
    for seed in 0 1 2; do for method in maxrl grpo rloo; do
        echo "mazes strong $seed $method-fresh --steps 480 --schedule constant --estimator $method" \
            "--eval-every 40 --eval-prompts 128 --eval-samples 64"
    done; done | many
    ;;
images)
    printf '%s\n' "images supervised 1 "{0,1,2} "images maxrl 1024 "{0,1,2} | many
    $python eval.py supervised=$out/images/seed{0,1,2}/supervised maxrl=$out/images/seed{0,1,2}/maxrl \
        --split test --k 1,128 --against supervised --json $out/images/test.json
    ;;
order)
    printf '%s\n' "order 1 "{0.3,1,3}" "{0,1,2} "order 1024 "{0.1,0.3,1}" "{0,1,2} | many
    rows=$(for folder in $out/order/seed[012]/*; do echo "$(basename "$folder")=$folder"; done)
    $python eval.py $rows --split test --k 1,25 --json $out/order/test.json
    ;;
majority)
    $python -m data.word_problems.prepare
    printf '%s\n' "words_base "{0,1,2} | many
    printf '%s\n' "words "{0,1,2}" "{maxrl,grpo} | many
    $python eval.py base=$out/words{0,1,2}/base grpo=$out/words{0,1,2}/grpo maxrl=$out/words{0,1,2}/maxrl \
        --prompts 256 --samples 64 --k 1,8,64 --json $out/majority.json
    ;;
esac
