#!/bin/bash
# Transcribe a folder or a manifest in a SLURM array. Each task does one part of the inputs; all write into one folder.
#
#   sbatch slurm_array.sh INPUTS OUTPUT [OPTIONS OF fastscribe transcribe]
#   sbatch --dependency=afterany:JOB --wrap 'fastscribe merge OUTPUT'
#
# Another number of tasks: SHARDS=16 sbatch --array=0-15 slurm_array.sh ...
# Only the tasks that merge names: sbatch --array=3,7 slurm_array.sh ..., with the same SHARDS.
# A task stops shortly before its --time (LIMIT) and requeues itself if it has written results.
#SBATCH --job-name=fastscribe
#SBATCH --array=0-99%20
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=fastscribe-%A_%a.log
set -euo pipefail

: "${SHARDS:=100}" "${LIMIT:=230m}"
inputs=$1 output=$2
shift 2

journal_bytes() { # of this task; in a store it is not looked at
  { cat "$output/journal.shard-$SLURM_ARRAY_TASK_ID-of-$SHARDS.jsonl" 2>/dev/null || true; } | wc -c
}

before=$(journal_bytes)
code=0
# srun: a signal at the time limit, at a preemption or from scancel reaches the steps of a job, not its script.
srun timeout -s TERM "$LIMIT" fastscribe transcribe "$inputs" --output-dir "$output" \
  --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" --no-progress "$@" || code=$?
# The time was over: the rest follows. A task that wrote nothing would not end.
if [ "$code" -eq 124 ] && { [[ "$output" == *://* ]] || [ "$(journal_bytes)" -ne "$before" ]; }; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
