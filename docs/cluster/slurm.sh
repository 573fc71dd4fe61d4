#!/bin/sh
# A training job on four nodes: sbatch docs/cluster/slurm.sh. Started again, it goes on from its last checkpoint, with four nodes, two, or one.
#SBATCH --job-name=distill
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
# Two minutes before the end all ranks are told to stop: a checkpoint is written.
#SBATCH --signal=TERM@120
# After the loss of a node the job is queued again.
#SBATCH --requeue

# The replicas are four whatever the number of ranks, so that the result is always the same.
srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    compress distill student.onnx --teacher teacher.onnx --data /shared/train --replicas 4 --threads "$SLURM_CPUS_PER_TASK" \
    --epochs 20 --resume -o student-trained.onnx
