#!/bin/bash
# Mounts the share of runs, models and data at /mnt/pddpo. A fresh share belongs to root: it is given to this user.
#
#   bash deploy/cluster/share.sh nfs4 nfsvers=4.1,hard fs-0123456789abcdef0.efs.us-west-2.amazonaws.com:/
#
# Without arguments, and where it is mounted already, it is only looked at. POINT names another folder.
set -euo pipefail
POINT=${POINT:-/mnt/pddpo}

if ! mountpoint -q "$POINT"; then
    [ $# -eq 3 ] || { echo "$POINT is not mounted: mount the share of all nodes there first" >&2; exit 1; }
    command -v mount.nfs >/dev/null || sudo apt-get install --yes nfs-common
    sudo mkdir -p "$POINT"
    sudo mount -t "$1" -o "$2" "$3" "$POINT"
fi
if [ ! -w "$POINT" ] && [ "$(stat -c %u "$POINT")" = 0 ]; then
    sudo chown "$(id -u):$(id -g)" "$POINT"
fi
probe=$(mktemp "$POINT/.pddpo-XXXXXX") || { echo "$(id -un) cannot write $POINT: change its owner" >&2; exit 1; }
rm "$probe"
