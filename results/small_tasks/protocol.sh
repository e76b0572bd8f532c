#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. One thread a run.
#   bash results/small_tasks/protocol.sh seed subset_sum 0     warm-up, MaxRL and GRPO of one task and seed
#   bash results/small_tasks/protocol.sh test subset_sum       256 test prompts x 256 samples, once, after all seeds
set -euo pipefail
python=${PYTHON:-python}
export OMP_NUM_THREADS=1
task=$2
out=runs/small_tasks/$task

case $1 in
seed)
    common=(--seed "$3" --save-every-minutes 2 --resume auto)
    $python train.py "${task}_sft" "${common[@]}" --out "$out/seed$3/base"
    for method in maxrl grpo; do
        $python train.py "$task" "${common[@]}" --init "$out/seed$3/base" --estimator $method --out "$out/seed$3/$method"
    done
    ;;
test)
    runs=()
    for name in base grpo maxrl; do runs+=($name="$out"/seed{0,1,2,3,4}/$name); done
    $python eval.py "${runs[@]}" \
        --split test --prompts 256 --samples 256 --k 1,8,64,256 --json "$out/test.json" --plot "$out/coverage.png"
    ;;
esac
