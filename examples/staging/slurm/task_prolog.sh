#!/bin/bash
# For administrators, `TaskProlog=/etc/slurm/task_prolog.sh`: gives each task of the partition's jobs the copy's path.
# It runs as the job's user. Slurm sets the variables that it prints as "export NAME=value" for the task.
PARTITION=imagenet
DATASET=/data/imagenet-train
TO=/dev/shm
BUDGET=150GiB
PACKTRAIN=/opt/packtrain/bin/packtrain

[ "$SLURM_JOB_PARTITION" = "$PARTITION" ] || exit 0

# Finds the copy made by prolog.sh at once, and keeps it for another hour. Without a copy, the job reads the source.
DATA=$("$PACKTRAIN" stage "$DATASET" --to "$TO" --budget "$BUDGET") || DATA=$DATASET
echo "export DATA=$DATA"
