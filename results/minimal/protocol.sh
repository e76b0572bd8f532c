#!/usr/bin/env bash
# The protocol of README.md: 15 runs, one after the other, and what they print as results.json.
set -euo pipefail
python=${PYTHON:-python}
printed=runs/minimal
export OMP_NUM_THREADS=1
mkdir -p "$printed"
for seed in 0 1 2 3 4; do
    for method in maxrl grpo rloo; do
        $python -m maxrl.minimal $method --seed $seed | tee "$printed/$method-$seed.txt"
    done
done
PYTHONPATH=. $python results/minimal/summarise.py --read "$printed"
$python results/summarise.py minimal
