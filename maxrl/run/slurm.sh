#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=8 --time=24:00:00
#SBATCH --signal=USR1@600 --requeue --open-mode=append
. .venv/bin/activate                         # sbatch starts in the directory in which it was typed
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
srun --cpus-per-task=8 --kill-on-bad-exit=1 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID \
    WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE \
    exec python train.py polaris_qwen3_1_7b --resume auto --save-every-minutes 30'
code=$?                                      # 75: stopped by a signal and saved; 138 and 143: in a long start
case $code in
    75) scontrol requeue "$SLURM_JOB_ID" ;;
    138 | 143) [ $SECONDS -lt 900 ] || scontrol requeue "$SLURM_JOB_ID" ;;  # earlier, srun has ended a refused run
esac
exit $code
