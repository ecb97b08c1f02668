#!/bin/bash
# For administrators, `TaskProlog=/etc/slurm/task_prolog.sh`: tells each task of the partition's jobs where the copy is.
# It runs as the job's user; what it prints as "export NAME=value" is set for the task.
PARTITION=imagenet
DATASET=/data/imagenet-train
TO=/dev/shm
BUDGET=150GiB
PACKTRAIN=/opt/packtrain/bin/packtrain

[ "$SLURM_JOB_PARTITION" = "$PARTITION" ] || exit 0

# What prolog.sh has staged is found at once, and safe for another hour. If it could not, the job reads the source.
DATA=$("$PACKTRAIN" stage "$DATASET" --to "$TO" --budget "$BUDGET") || DATA=$DATASET
echo "export DATA=$DATA"
