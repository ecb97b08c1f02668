#!/usr/bin/env bash
# Runs several commands on one staged copy: train, then evaluate.
set -euo pipefail

DATASET=${DATASET:-/data/imagenet-train}
TO=${TO:-/dev/shm}
BUDGET=${BUDGET:-150GiB} # for everything staged there; use the same number in every job on the machine

# Only the path goes to stdout; progress and errors go to stderr. If there is no room, or staging fails for another
# reason, train on the source: that is slower, but it works.
DATA=$(packtrain stage "$DATASET" --to "$TO" --budget "$BUDGET") || DATA=$DATASET

# The copy is not evicted for one hour after that line (--grace). open_dataset(DATA) leases it for as long as it reads.
python train.py --data "$DATA" --epochs 90
python evaluate.py --data "$DATA"
