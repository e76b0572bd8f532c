#!/usr/bin/env bash
# The protocols of README.md as commands; every run resumes where it was interrupted. One thread a run, JOBS of them at a time.
#   bash results/planned/protocol.sh majority    majority vote on generated word problems: bases, runs, test
#   bash results/planned/protocol.sh baselines   PKPO, differential smoothing, GRPO with an entropy bonus: runs, then their test
#   bash results/planned/protocol.sh rollouts    4, 8, 16 and 64 rollouts
# baselines and rollouts start from the weak bases of the headline: bash results/headline/protocol.sh bases
set -euo pipefail
export python=${PYTHON:-python} out=runs/planned bases=runs/headline/weak OMP_NUM_THREADS=1

words_base() { # seed
    $python train.py gsm8k_laptop_sft --seed "$1" --out "$out/words$1/base" --resume auto
}
words() { # seed, method
    $python train.py gsm8k_laptop --estimator "$2" --seed "$1" --init "$out/words$1/base" --out "$out/words$1/$2" \
        --save-every-minutes 3 --resume auto
}
mazes() { # seed, name, options
    seed=$1 name=$2
    shift 2
    $python train.py maze9_laptop --lr 1e-4 --seed "$seed" --init "$bases/seed$seed/base" --out "$out/mazes/seed$seed-$name" \
        --eval-every 100 --save-every-minutes 3 --resume auto "$@"
}
export -f words_base words mazes
many() { xargs -P "${JOBS:-2}" -L 1 bash -c 'set -euo pipefail; "$@"' _; }

case $1 in
majority)
    $python -m data.word_problems.prepare
    printf '%s\n' "words_base "{0,1,2} | many
    printf '%s\n' "words "{0,1,2}" "{maxrl,grpo} | many
    $python eval.py base=$out/words{0,1,2}/base grpo=$out/words{0,1,2}/grpo maxrl=$out/words{0,1,2}/maxrl \
        --prompts 256 --samples 32 --k 1,8,32 --json $out/majority.json
    ;;
baselines)
    printf '%s\n' "mazes "{0,1,2}" pkpo --steps 1000 --estimator pkpo --estimator.k 8" \
        "mazes "{0,1,2}" smoothing --steps 1000 --estimator differential_smoothing --estimator.gamma .05" \
        "mazes "{0,1,2}" entropy --steps 1000 --estimator grpo --entropy-bonus .01" | many
    $python eval.py pkpo=$out/mazes/seed{0,1,2}-pkpo smoothing=$out/mazes/seed{0,1,2}-smoothing \
        entropy=$out/mazes/seed{0,1,2}-entropy --split test --prompts 256 --samples 256 --k 1,8,64,256 --json $out/baselines.json
    ;;
rollouts)
    for n in 4 8 16 64; do
        printf '%s\n' "mazes "{0,1}" "{maxrl,grpo,rloo}"-$n --steps 500 --schedule constant --rollouts $n --estimator" |
            sed -E 's/ (maxrl|grpo|rloo)(.*)$/ \1\2 \1/'
    done | many
    ;;
esac
