#!/usr/bin/env bash
# Runs one command on a staged copy. `exec` replaces this shell, so signals and exit code are the command's own.
set -euo pipefail

DATASET=${DATASET:-/data/imagenet-train}
TO=${TO:-/dev/shm}
BUDGET=${BUDGET:-150GiB} # for everything staged there; use the same number in every job on the machine

# The command and all processes it starts hold the lease until the last of them has ended, even if they read the files
# without packtrain. {} is replaced by the path, which is also in the variable PACKTRAIN_STAGED.
exec packtrain stage "$DATASET" --to "$TO" --budget "$BUDGET" -- python train.py --data {} --epochs 90
