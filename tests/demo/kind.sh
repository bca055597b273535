#!/usr/bin/env bash
# Makes a kind cluster with Paddock's images and the small model. kind nodes have no GPU: the model runs on the CPU there.
set -euo pipefail
. tests/cluster/versions.env
version=$(.venv/bin/python -c 'import paddock; print(paddock.__version__)')
kind get clusters | grep -qx paddock || kind create cluster --name paddock
docker build -q -t "ghcr.io/paddock-dev/operator:$version" -f images/operator.Dockerfile .
docker build -q -t "ghcr.io/paddock-dev/agent:$version" -f images/agent.Dockerfile .
for image in operator agent; do kind load docker-image --name paddock "ghcr.io/paddock-dev/$image:$version"; done
model=$(.venv/bin/python -c 'import sys; sys.path.insert(0, "tests"); from cluster.models import cached; from cluster.settings import cache_folder; print(cached(cache_folder()))')
for node in $(kind get nodes --name paddock); do
  docker exec "$node" mkdir -p /var/lib/paddock/models
  docker cp "$model" "$node:/var/lib/paddock/models/gemma.gguf"
done
kubectl config use-context kind-paddock >/dev/null
