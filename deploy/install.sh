#!/bin/bash
# Makes ~/venv with Python 3.11, the lock of requirements/ with its hashes, this package and its laboratory; what is
# there already stays.
# The nodes of `ray up` and the container image are set up by it.
#
#   bash deploy/install.sh               # for CUDA: requirements/py311-gpu.lock
#   ENGINE=cpu bash deploy/install.sh    # the lock that the tests run with
#
# VENV names another folder, TORCH_INDEX (ENGINE=cpu) an index with CPU builds of torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ENGINE=${ENGINE:-gpu}
VENV=${VENV:-$HOME/venv}
TORCH=torch==2.13.0

if ! command -v python3.11 >/dev/null; then
    sudo apt-get update
    # Ubuntu has no Python 3.11 of its own; Debian 12 has.
    if grep -q '^ID=ubuntu' /etc/os-release; then
        sudo apt-get install --yes software-properties-common
        sudo add-apt-repository --yes ppa:deadsnakes/ppa
    fi
    sudo apt-get install --yes python3.11 python3.11-dev python3.11-venv
fi
# torch and DeepSpeed compile operations on first use
command -v g++ >/dev/null || sudo apt-get install --yes g++

[ -x "$VENV/bin/python" ] || python3.11 -m venv "$VENV"
PIP=("$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation)
export DS_BUILD_OPS=0 PATH=$VENV/bin:$PATH
case $ENGINE in
    gpu)
        "${PIP[@]}" --require-hashes -r requirements/py311-gpu.lock
        # is built here and imports torch for that
        "${PIP[@]}" --require-hashes -r requirements/py311-gpu-built.lock
        ;;
    cpu)
        "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet "$TORCH" \
            ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
        "${PIP[@]}" -r requirements/py311.lock
        ;;
    *)
        echo "ENGINE=$ENGINE: write gpu or cpu" >&2
        exit 2
        ;;
esac
"${PIP[@]}" -e . -e lab

# Shells of `ray up` are interactive ones; every Ray process of the cluster checks the token.
LINE="export PATH=$VENV/bin:\$PATH RAY_AUTH_MODE=token"
grep -qxF "$LINE" ~/.bashrc 2>/dev/null || echo "$LINE" >> ~/.bashrc
