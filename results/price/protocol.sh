#!/usr/bin/env bash
# The protocol of README.md as commands; every run resumes where it was interrupted. One thread a run, JOBS of them at a time.
#   bash results/price/protocol.sh data       9x9 mazes of another seed: test mazes that no other study has
#   bash results/price/protocol.sh mazes      the warm-up and nine arms of every seed (SEEDS="4 5 6 7")
#   bash results/price/protocol.sh test       256 test mazes x 512 samples, once, of the arms that are finished (SEEDS=)
#   bash results/price/protocol.sh glyphs     drawn images, 200 classes and 1,000
#   bash results/price/protocol.sh images     every arm on them (IMAGE_SEEDS="4 5 6")
#   bash results/price/protocol.sh test-images
set -euo pipefail
python=${PYTHON:-python}
out=runs/price
mazes=data/maze/9x9-price
seeds=${SEEDS:-4 5 6 7}
image_seeds=${IMAGE_SEEDS:-4 5 6}
export OMP_NUM_THREADS=1

arms="maxrl-16x32 maxrl_rare-16x32 maxrl_rare-16x8,8,16 maxrl-32x16 maxrl_rare-32x16 maxrl_rare-32x8,8,16 grpo-16x32 grpo-32x16
      rloo-16x32"
image_arms="supervised-1 maxrl-1024 maxrl_rare-1024 maxrl_rare-64,64,128,256,512"

base() { # seed
    $python train.py maze9_laptop_sft --task.directory $mazes --seed "$1" --out "$out/seed$1/base" --resume auto
}
run() { # seed, estimator-PROMPTSxROLLOUTS
    size=${2#*-}
    $python train.py maze9_laptop --task.directory $mazes --steps 1000 --estimator "${2%%-*}" --prompts "${size%x*}" \
        --rollouts "${size#*x}" --seed "$1" --init "$out/seed$1/base" --out "$out/seed$1/$2" --eval-every 100 \
        --save-every-minutes 3 --keep 1 --resume auto
}
images() { # classes, seed, estimator-ROLLOUTS
    steps=400 k=25
    if [ "$1" = 1000 ]; then steps=2000 k=128; fi
    rate=1.0
    if [ "$1" = 1000 ]; then rate=3.0; fi
    $python train.py images_laptop --task.directory "glyphs/$1x32" --estimator "${3%%-*}" --rollouts "${3#*-}" --lr $rate \
        --steps $steps --warmup-steps $((steps / 20)) --seed "$2" --eval-every $((steps / 20)) --eval-k 1,$k \
        --out "$out/images$1/seed$2/$3" --save-every-minutes 3 --keep 1 --resume auto
}
export -f base run images
export python out mazes

many() { xargs -P "${JOBS:-2}" -L 1 bash -c 'set -euo pipefail; "$@"' _; }

case ${1:?one of the words at the top of this file} in
data)
    $python -m data.maze.prepare --size 9 --seed 1 --train 70000 --out $mazes
    ;;
mazes)
    for seed in $seeds; do
        echo "base $seed" | many
        for arm in $arms; do echo "run $seed $arm"; done | many
    done
    ;;
test)
    for seed in $seeds; do
        runs=("base=$out/seed$seed/base")
        for arm in $arms; do
            if [ "$(cat "$out/seed$seed/$arm/latest" 2>/dev/null)" = step-001000 ]; then runs+=("$arm=$out/seed$seed/$arm"); fi
        done
        $python eval.py "${runs[@]}" --split test --prompts 256 --samples 512 --k 1,8,64,256,512 --json "$out/test-$seed.json"
    done
    ;;
glyphs)
    $python -m data.glyphs.prepare
    $python -m data.glyphs.prepare --classes 1000 --size 32 --train 100000 --validation 2500 --test 2500
    ;;
images)
    for seed in $image_seeds; do for arm in $image_arms; do echo "images 200 $seed $arm"; done; done | many
    for seed in $image_seeds; do for arm in $image_arms; do echo "images 1000 $seed $arm"; done; done | many
    ;;
test-images)
    for classes in 200 1000; do
        k=$([ $classes = 200 ] && echo 1,25 || echo 1,128)
        runs=$(for seed in $image_seeds; do for arm in $image_arms; do
            if [ -e "$out/images$classes/seed$seed/$arm/latest" ]; then echo "$arm=$out/images$classes/seed$seed/$arm"; fi
        done; done)
        $python eval.py $runs --split test --k $k --json "$out/test$classes.json"
    done
    ;;
esac
