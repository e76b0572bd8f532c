#!/bin/bash
# The first minutes on a GPU, in this order: is it right, does memory come back, how fast is it?
#
#     bash tests/gpu/first_hour.sh                 # about ten minutes on one GPU, then all of the node's
#     bash tests/gpu/first_hour.sh --device cpu --tiny     # the same items on any machine, small
#
# It ends at the first step that fails; what each found is in a folder of runs/first_hour. What is expected
# below is an estimate for an H100: nothing of it has run on a GPU.
set -eo pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=.
out=runs/first_hour/$(date +%m%d-%H%M%S)
mkdir -p "$out"
step() {                                           # step NUMBER ITEM...
    local number=$1; shift
    python -m tests.gpu.gpu_check "${how[@]}" --out $out/check.jsonl --only "$@" | tee "$out/$number.txt"
}
how=("$@")

# 1 The gradient is within .01 to .04 in bfloat16 and 1e-9 in float64; 64 tokens wait as often as 32,
#   ragged prompts as often as equal ones. If float64 is wrong: the triangle of attention; bfloat16
#   alone: a kernel; waits: the lines are printed.
step 1 versions attention_values synchronisations

# 2 The rollouts with CUDA graphs are those without; 700 to 900 us a step with, 950 to 1,300 without,
#   at 32 x 128; a capture costs 3 to 20 ms. If rollouts differ: an old address, so try it with
#   Cache.BLOCK = 192; if it "goes on without CUDA graphs": --cuda-graphs false for the rest.
step 2 graphs captures

# 3 reserved_gb is flat from the second half on, a step's rollout takes .10 to .20 s and its backward
#   .05 to .09 s. If it grows by 40 MB and more a step: pools of graphs are not given back.
step 3 memory_of_steps

# 4 1,007 and 1,055 kernels a step; SmolLM2 20 to 26 ms for 4,096 rows, Qwen3 4.5 to 6.5 ms for 128.
#   If it takes 1.5 times as long with as many kernels: products that are not aligned.
step 4 decode_smollm2 decode_qwen3

# 5 SmolLM2 30 to 45 ms, ragged about the same, with flash kernels in both; Qwen3 .19 s with 2**25
#   logits in a chunk and .12 s with 2**27. If `flash` is in no name: attention stores its weights.
step 5 training_smollm2 training_qwen3

# 6 All well; torchrun takes what plain Python does and 2 ms.
step 6 torchrun sharded resumed deterministic options

# 7 Memory as planned or less, and the seconds of whole steps.
step 7 recipes whole_steps

# 8 Several GPUs: DDP, then one model over all of them; NCCL names the network in its first lines.
gpus=$({ nvidia-smi --list-gpus 2> /dev/null || true; } | wc -l)
if [ "$gpus" -gt 1 ]; then
    export NCCL_DEBUG=INFO
    mazes="--task.directory ${TMPDIR:-/tmp}/maxrl_gpu_check/17x17 --eval-every 0"
    torchrun --nproc-per-node "$gpus" train.py maze17_sft $mazes --steps 20 --stop-at-pass 0 --out $out/warm |
        tee $out/8.txt
    for words in "" "--shard true"; do
        torchrun --nproc-per-node "$gpus" train.py maze17 $mazes --init $out/warm --prompts 256 --steps 20 $words \
            --entropy-bonus .001 --out "$out/rl${words:+-shard}" | tee -a $out/8.txt
    done
fi
echo "all steps are done: $out/check.jsonl has what they found"
