#!/bin/bash
# For administrators, `Prolog=/etc/slurm/prolog.sh`: stages what the jobs of a partition train on before they start.
# What is copied here is not memory of the job. Let BatchStartTimeout and PrologEpilogTimeout be longer than a copy takes.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin # a prolog is started without

PARTITION=imagenet
DATASET=/data/imagenet-train
TO=/dev/shm
BUDGET=150GiB
PACKTRAIN=/opt/packtrain/bin/packtrain

[ "$SLURM_JOB_PARTITION" = "$PARTITION" ] || exit 0

# As the job's user: copies are private to the user who makes them, and a copy of root's would be of no use to the job.
# The next prolog goes on from where one that took too long was stopped.
if ! said=$(timeout 15m runuser -u "$SLURM_JOB_USER" -- \
    "$PACKTRAIN" stage "$DATASET" --to "$TO" --budget "$BUDGET" 2>&1); then
    logger -t packtrain "job $SLURM_JOB_ID of $SLURM_JOB_USER: $said"
fi
exit 0 # whatever happened: a prolog that fails drains the node
