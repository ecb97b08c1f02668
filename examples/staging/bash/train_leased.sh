#!/usr/bin/env bash
# One command on one staged copy. `exec`: the command takes the place of this shell, so signals and exit code are its own.
set -euo pipefail

DATASET=${DATASET:-/data/imagenet-train}
TO=${TO:-/dev/shm}
BUDGET=${BUDGET:-150GiB} # for all that is staged there; give every job of the machine the same number

# The command and all that it starts hold the lease, from before they start until the last of them has ended, even where
# they read the files with something else than packtrain. {} becomes the path, which is in PACKTRAIN_STAGED as well.
exec packtrain stage "$DATASET" --to "$TO" --budget "$BUDGET" -- python train.py --data {} --epochs 90
