#!/usr/bin/env bash
# The protocol of README.md; every run resumes where it was interrupted.
#   bash results/demo/protocol.sh seeds       seeds 0, 1, 2, then the test
#   bash results/demo/protocol.sh settings    seed 0 under other instruction sets and numbers of threads
set -euo pipefail
python=${PYTHON:-python}
export OMP_NUM_THREADS=1
demo() { make demo PYTHON="$python" VENV= "$@"; }

case ${1:?one of the words at the top of this file} in
seeds)
    for seed in 0 1 2; do demo SEED=$seed; done
    d=runs/demo
    $python eval.py base={${d}0,${d}1,${d}2}/base rloo={${d}0,${d}1,${d}2}/rloo grpo={${d}0,${d}1,${d}2}/grpo maxrl={${d}0,${d}1,${d}2}/maxrl \
        --split test --prompts 256 --samples 256 --k 1,8,64,256 --json runs/demo-test.json --plot runs/demo-coverage.png
    ;;
settings)
    OMP_NUM_THREADS=2 demo DEMO=runs/demo-2threads JOBS=1
    export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
    demo DEMO=runs/demo-avx2
    OMP_NUM_THREADS=2 demo DEMO=runs/demo-avx2-2threads JOBS=1
    export ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_CBWR=COMPATIBLE
    demo DEMO=runs/demo-smallest
    OMP_NUM_THREADS=2 demo DEMO=runs/demo-smallest-2threads JOBS=1
    ;;
esac
