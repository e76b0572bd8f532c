#!/usr/bin/env bash
# The protocol of README.md: MaxRL and GRPO in turns of MINUTES, so that both have had as many whenever it ends; TURNS of them.
# The base is seed 1 of results/maze17_base: bash results/maze17_base/protocol.sh
set -euo pipefail
export python=${PYTHON:-python} out=runs/maze17_rl base=${BASE:-runs/maze17_base/seed1} OMP_NUM_THREADS=1
turn() { # method
    # Code 75: asked to end, it has saved.
    timeout -s TERM "$((${MINUTES:-9} * 60))" $python train.py maze17 --estimator "$1" --rollouts 32 --init "$base" \
        --out "$out/$1" --steps 1000 --precision bfloat16 --eval-every 0 --save-every 0 --save-every-minutes 3 --keep 1 \
        --resume auto || { code=$?; [ $code = 75 ] || [ $code = 124 ]; }
}
export -f turn

case $1 in
turn)
    turn "$2"
    ;;
runs)
    for _ in $(seq "${TURNS:-20}"); do printf '%s\n' maxrl grpo | xargs -P 2 -L 1 bash -c 'set -euo pipefail; turn "$@"' _; done
    ;;
validation)
    $python eval.py base="$base" grpo=$out/grpo maxrl=$out/maxrl --split validation --prompts 256 --samples 128 --k 1,32,128 \
        --precision bfloat16 --json $out/validation.json
    ;;
esac
