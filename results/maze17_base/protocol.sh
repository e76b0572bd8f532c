#!/usr/bin/env bash
# The protocol of README.md; every run resumes where it was interrupted. Two runs at a time, one thread each.
set -euo pipefail
export python=${PYTHON:-python} out=runs/maze17_base OMP_NUM_THREADS=1
run() {
    $python train.py maze17_sft --seed "$1" --precision bfloat16 --out "$out/seed$1" --resume auto
    $python eval.py "$out/seed$1" --split test --prompts 256 --samples 256 --k 1,32,128,256 --precision bfloat16 \
        --json "$out/seed$1/test.json"
}
export -f run
printf '%s\n' 0 1 2 | xargs -P 2 -L 1 bash -c 'run "$@"' _
