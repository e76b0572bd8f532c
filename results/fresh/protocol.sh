#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. One thread each.
#   bash results/fresh/protocol.sh data             9x9 mazes of another seed
#   bash results/fresh/protocol.sh rates weak       seed 100 at three rates for each method, then their validation; and strong
#   bash results/fresh/protocol.sh seed weak 4      a seed: its warm-up, then RLOO, GRPO and MaxRL; weak 4 to 7, strong 3 to 6
#   bash results/fresh/protocol.sh test weak        256 test mazes x 512 samples, once, of the seeds that are finished; and strong
# RLOO=, GRPO= and MAXRL= are the chosen rates (1e-4). STEPS=10 is a trial.
set -euo pipefail
python=${PYTHON:-python}
out=runs/fresh
mazes=data/maze/9x9-fresh
steps=${STEPS:-1000}
declare -A rate=([rloo]=${RLOO:-1e-4} [grpo]=${GRPO:-1e-4} [maxrl]=${MAXRL:-1e-4})
export OMP_NUM_THREADS=1

base() { # weak or strong, seed
    level=.015
    if [ "$1" = strong ]; then level=.08; fi
    $python train.py maze9_laptop_sft --task.directory $mazes --seed "$2" --stop-at-pass $level --out "$out/$1/seed$2/base" --resume auto
}
run() { # weak or strong, seed, method, learning rate
    $python train.py maze9_laptop --task.directory $mazes --steps "$steps" --estimator "$3" --lr "$4" --seed "$2" \
        --init "$out/$1/seed$2/base" --out "$out/$1/seed$2/$3-lr$4" --eval-every $((steps / 10)) --save-every-minutes 3 --keep 1 --resume auto
}

case ${1:?one of the words at the top of this file} in
data)
    $python -m data.maze.prepare --size 9 --seed 2 --train 70000 --out $mazes
    ;;
rates)
    base "$2" 100
    for method in rloo grpo maxrl; do
        for lr in 3e-5 1e-4 3e-4; do run "$2" 100 $method $lr; done
    done
    $python - "$out/$2"/seed100/*-lr*/metrics.jsonl <<'END'
import json, statistics, sys
for file in sys.argv[1:]:
    rows = [json.loads(line) for line in open(file)]
    passed = [row["eval/pass@1"] for row in rows if "eval/pass@1" in row]
    print(file, "pass@1 of the last two evaluations:", round(statistics.mean(passed[-2:]), 3))
END
    ;;
seed)
    base "$2" "$3"
    for method in rloo grpo maxrl; do run "$2" "$3" $method "${rate[$method]}"; done
    ;;
test)
    rows=()
    for folder in "$out/$2"/seed[3-7]; do
        for method in rloo grpo maxrl; do
            [ "$(cat "$folder/$method-lr${rate[$method]}/latest" 2>/dev/null)" = "$(printf step-%06d "$steps")" ] || continue 2
        done
        rows+=("base=$folder/base")
        for method in rloo grpo maxrl; do rows+=("$method=$folder/$method-lr${rate[$method]}"); done
    done
    [ ${#rows[@]} -gt 0 ] || { echo "no seed of the $2 base has finished all methods"; exit 2; }
    $python eval.py "${rows[@]}" --split test --prompts 256 --samples 512 --k 1,8,64,256,512 --json "$out/$2-test.json"
    ;;
esac
