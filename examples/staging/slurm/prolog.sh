#!/bin/bash
# For administrators, `Prolog=/etc/slurm/prolog.sh`: stages the dataset of a partition's jobs before they start.
# The copy does not count as memory of the job. Set BatchStartTimeout and PrologEpilogTimeout to more than a copy takes.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin # a prolog is started without PATH

PARTITION=imagenet
DATASET=/data/imagenet-train
TO=/dev/shm
BUDGET=150GiB
PACKTRAIN=/opt/packtrain/bin/packtrain

[ "$SLURM_JOB_PARTITION" = "$PARTITION" ] || exit 0

# Run as the job's user: copies are private to the user who makes them, so the job could not use a copy made by root.
# If the copy takes too long and is stopped, the next prolog continues it.
if ! said=$(timeout 15m runuser -u "$SLURM_JOB_USER" -- \
    "$PACKTRAIN" stage "$DATASET" --to "$TO" --budget "$BUDGET" 2>&1); then
    logger -t packtrain "job $SLURM_JOB_ID of $SLURM_JOB_USER: $said"
fi
exit 0 # in any case: a prolog that fails drains the node
