#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. One thread a run.
#   bash results/small_tasks/protocol.sh seed subset_sum 0     warm-up, MaxRL and GRPO of one task and seed
#   bash results/small_tasks/protocol.sh test subset_sum 0     256 test prompts x 256 samples, once, after the seed's runs
set -euo pipefail
python=${PYTHON:-python}
export OMP_NUM_THREADS=1
task=${2:?subset_sum or reverse_text}
tasks=results/small_tasks/tasks.py
declare -A class=([subset_sum]=SubsetSum [reverse_text]=ReverseText)
out=runs/small_tasks/$task

case ${1:?one of the words at the top of this file} in
seed)
    common=(--seed "$3" --save-every-minutes 2 --resume auto)
    $python train.py "$tasks:${task}_sft" "${common[@]}" --out "$out/seed$3/base"
    for method in maxrl grpo; do
        $python train.py "$tasks:$task" "${common[@]}" --init "$out/seed$3/base" --estimator $method --out "$out/seed$3/$method"
    done
    ;;
test)
    $python eval.py base="$out/seed$3/base" grpo="$out/seed$3/grpo" maxrl="$out/seed$3/maxrl" \
        --task "$tasks:${class[$task]}" --split test --prompts 256 --samples 256 --k 1,8,64,256 --json "$out/test-seed$3.json"
    ;;
esac
