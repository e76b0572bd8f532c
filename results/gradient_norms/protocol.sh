# The protocol of the gradient norms in results/oracle/README.md as commands. Two CPU cores, about ten minutes.
set -e
export PYTHONPATH=. OMP_NUM_THREADS=1
S=runs/gradient_norms
mkdir -p $S

# The bases of the mazes are those of results/headline, seed 0.
for base in weak strong; do
    python results/norms.py $base=runs/headline/$base/seed0/base --split validation --samples 128 --prompts 256 \
        --json $S/maze_$base.json
done

python -m data.word_problems.prepare
python train.py gsm8k_laptop_sft --seed 0 --out runs/gradient_norms/words --resume auto --save-every-minutes 3
python results/norms.py words=runs/gradient_norms/words --split validation --samples 128 --prompts 256 \
    --json $S/words.json
