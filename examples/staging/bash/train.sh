#!/usr/bin/env bash
# Several commands on one staged copy: train, then evaluate.
set -euo pipefail

DATASET=${DATASET:-/data/imagenet-train}
TO=${TO:-/dev/shm}
BUDGET=${BUDGET:-150GiB} # for all that is staged there; give every job of the machine the same number

# Only the path is printed on stdout; progress and complaints go to stderr. Where there is no room, or staging fails for
# any other reason, train on the source: slower, but not in vain.
DATA=$(packtrain stage "$DATASET" --to "$TO" --budget "$BUDGET") || DATA=$DATASET

# For an hour (--grace) after that line nothing evicts the copy. open_dataset(DATA) leases it for as long as it reads.
python train.py --data "$DATA" --epochs 90
python evaluate.py --data "$DATA"
