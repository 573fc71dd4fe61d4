#!/bin/sh
# A sweep of twelve fractions in four parts: sbatch docs/cluster/array.sh. The third part alone, again: sbatch --array=3 docs/cluster/array.sh
#SBATCH --job-name=sweep
#SBATCH --array=1-4
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --time=02:00:00

# Not SLURM_ARRAY_TASK_COUNT, which is 1 for a part that is done again.
parts=4
fractions=0.3,0.35,0.4,0.45,0.5,0.55,0.6,0.65,0.7,0.75,0.8,0.85
compress model.onnx --sweep "$fractions" --data /shared/train --threads "$SLURM_CPUS_PER_TASK" \
    --shard "$SLURM_ARRAY_TASK_ID/$parts" --force -o model-swept.onnx

# The report of all, by hand or by a job that depends on this one (sbatch --dependency=afterok:JOB):
#   compress merge model-swept.*-of-4.report.json
