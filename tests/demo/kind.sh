#!/usr/bin/env bash
# Makes a kind cluster with Paddock's images and the small model. kind nodes have no GPU: the model runs on the CPU there.
# KUBECONFIG is written; BIN is the folder of the Python environment's programs.
set -euo pipefail
bin=${BIN:-.venv/bin}
version=$("$bin"/python -c 'import paddock; print(paddock.__version__)')
kind get clusters | grep -qx paddock || kind create cluster --name paddock --kubeconfig "$KUBECONFIG"
kind export kubeconfig --name paddock --kubeconfig "$KUBECONFIG"
for image in operator agent; do
  lock=requirements/$image.lock base=
  if [ "$image" = agent ]; then
    # Built from the serving image, whose ggml libraries it lists; its Python is 3.12.
    lock=requirements/agent-lean.lock base="--build-arg BASE=ghcr.io/ggml-org/llama.cpp:server-b$LLAMA_CPP_BUILD"
  fi
  python_version=$([ "$image" = agent ] && echo 3.12 || echo 3.11)
  "$bin"/pip download -q --require-hashes --only-binary :all: --python-version "$python_version" -r "$lock" -d "build/wheels/$image"
  # shellcheck disable=SC2086 two words or none
  docker build -q $base -t "ghcr.io/paddock-dev/$image:$version" -f "images/$image.Dockerfile" .
  kind load docker-image --name paddock "ghcr.io/paddock-dev/$image:$version"
done
model=$("$bin"/python -c 'import sys; sys.path.insert(0, "tests"); from cluster.models import cached; from cluster.settings import cache_folder; print(cached(cache_folder()))')
for node in $(kind get nodes --name paddock); do
  docker exec "$node" mkdir -p /var/lib/paddock/models
  docker cp "$model" "$node:/var/lib/paddock/models/gemma.gguf"
done
