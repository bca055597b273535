#!/usr/bin/env bash
# From a bare machine to an answered chat on the chosen GPU. Started by `make demo`.
#
#   CLUSTER=local     a real cluster on this machine, with pretend GPUs (default)
#   CLUSTER=current   the cluster that KUBECONFIG names; its nodes need GPUs, and gemma.gguf in the model root
#   CLUSTER=kind      a kind cluster
# The last two need kubectl and helm, kind also kind and docker; nothing is built for them but images.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/cluster/versions.env
bin=${BIN:-.venv/bin}
kind=${CLUSTER:-local}
namespace=${NAMESPACE:-demo}
began=$SECONDS
values=()
step() { printf '\n\033[1m%s\033[0m %s\n' "==>" "$*"; }
need() {
  local lacking=()
  for program in "$@"; do command -v "$program" >/dev/null || lacking+=("$program"); done
  [ "${#lacking[@]}" = 0 ] || fail "CLUSTER=$kind needs ${lacking[*]} in PATH"
}
fail() { printf '\nPADDOCK DEMO FAILED %s\n' "$*" >&2; exit 1; }

case $kind in
  local)
    step "A real cluster on this machine: two nodes with pretend GPUs (first time about 20 minutes, later seconds)"
    $bin/python tests/cluster/cluster.py up
    KUBECONFIG=$($bin/python tests/cluster/cluster.py kubeconfig)
    export KUBECONFIG PATH="$PADDOCK_CACHE/kubernetes-$KUBERNETES_VERSION:$PADDOCK_CACHE/helm-$HELM_VERSION:$PATH"
    ;;
  current)
    need kubectl helm
    step "The cluster of your kubeconfig: $(kubectl config current-context)"
    ;;
  kind)
    need kind docker kubectl helm
    docker info >/dev/null 2>&1 || fail "CLUSTER=kind needs a container engine: docker info does not answer; is it started, and may you use it?"
    step "A kind cluster, with Paddock's images built for it (about 5 minutes)"
    # A kubeconfig of its own: yours, and which cluster is current there, stay as they are.
    mkdir -p build
    export LLAMA_CPP_BUILD KUBECONFIG="$PWD/build/kind.kubeconfig"
    tests/demo/kind.sh || fail "the kind cluster could not be made ready; the lines above say why"
    # kind's nodes have no GPU and no NVIDIA toolkit: one plain pool of agents, and the CPU.
    values=(--set-json 'agents=[{"name":"cpu"}]')
    ;;
  *) fail "CLUSTER=$kind is none of local, current, kind" ;;
esac

step "Paddock, from its chart (about 10 s)"
install=(helm upgrade --install paddock charts/paddock -n paddock-system --create-namespace --wait --timeout 5m "${values[@]}")
"${install[@]}" >/dev/null 2>&1 || "${install[@]}"
if [ "$kind" = local ]; then
  # The images keep their tag while the code changes: pods of older code are replaced.
  code=$(find operator/paddock images -name '*.py' -o -name '*.Dockerfile' | sort | xargs sha256sum | sha256sum | cut -c1-16)
  if [ "$(kubectl get namespace paddock-system -o jsonpath='{.metadata.annotations.code}')" != "$code" ]; then
    kubectl -n paddock-system rollout restart deployment,daemonset -l app.kubernetes.io/name=paddock >/dev/null
    kubectl -n paddock-system rollout status deployment -l app.kubernetes.io/name=paddock --timeout 5m >/dev/null
    kubectl annotate --overwrite namespace paddock-system "code=$code" >/dev/null
  fi
fi
kubectl -n paddock-system rollout status daemonset -l app.kubernetes.io/name=paddock --timeout 5m >/dev/null
for _ in $(seq 120); do
  [ "$kind" = kind ] && break
  [ -n "$(kubectl get gpus -o name 2>/dev/null)" ] && break
  sleep 0.5
done
[ "$kind" = kind ] || [ -n "$(kubectl get gpus -o name)" ] || fail "no GPU is listed; see kubectl -n paddock-system logs -l app.kubernetes.io/component=node-agent"
kubectl get pods -n paddock-system

step "The GPUs that ggml's registry reports"
$bin/paddock devices

step "One YAML, in a namespace that enforces restricted Pod Security"
kubectl create namespace "$namespace" --dry-run=client -o yaml \
  | kubectl label --local -f - pod-security.kubernetes.io/enforce=restricted -o yaml | kubectl apply -f - >/dev/null
cat examples/gemma.yaml
kubectl apply -n "$namespace" -f examples/gemma.yaml
if [ "$kind" = kind ]; then
  kubectl patch -n "$namespace" mdep gemma --type merge -p '{"spec":{"serving":{"gpuLayers":0},"placement":{"allowCPU":true}}}'
fi
kubectl wait -n "$namespace" --for=condition=Available mdep/gemma --timeout=5m >/dev/null \
  || { kubectl describe -n "$namespace" mdep gemma; fail "gemma did not become Available"; }
kubectl get -n "$namespace" mdep gemma

step "Why this GPU"
$bin/paddock explain -n "$namespace" gemma

step "A chat"
question=${QUESTION:-"In one sentence: what is a paddock?"}
printf '> %s\n' "$question"
answer=$($bin/paddock chat -n "$namespace" gemma --json --max-tokens 48 "$question")
"$bin/python" - "$answer" <<'P'
import json, sys
print(json.loads(sys.argv[1])["choices"][0]["message"]["content"].strip())
P
tokens=$("$bin/python" -c 'import json,sys; print(json.loads(sys.argv[1])["usage"]["completion_tokens"])' "$answer")
read -r node device id verified < <(kubectl get -n "$namespace" mdep gemma -o json | "$bin/python" -c '
import json, sys
status = json.load(sys.stdin)["status"]
placed = status["placements"][0]
device = placed["devices"][0] if placed["devices"] else {"name": "CPU"}
verified = next(one["status"] for one in status["conditions"] if one["type"] == "Verified")
print(placed["node"], device["name"], device.get("uuid") or device.get("pciId") or "-", verified)')
[ "$verified" = True ] || fail "the placement is not verified"
[ "$tokens" -gt 0 ] || fail "the answer is empty"
printf '\nTook %d s. The cluster stays up. To look around:\n' "$((SECONDS - began))"
if [ "$kind" = local ]; then
  printf '  export KUBECONFIG=%s PATH=%s:$PATH\n' "$KUBECONFIG" "$PADDOCK_CACHE/kubernetes-$KUBERNETES_VERSION"
fi
if [ "$kind" = kind ]; then printf '  export KUBECONFIG=%s\n' "$KUBECONFIG"; fi
printf '  kubectl get mdep,gpus -A\n  %s/paddock explain -n %s gemma\n' "$bin" "$namespace"
if [ "$kind" = local ]; then printf 'make clean-cluster removes it.\n'; fi
if [ "$kind" = kind ]; then printf 'kind delete cluster --name paddock removes it.\n'; fi
printf 'PADDOCK DEMO OK model=gemma node=%s device=%s id=%s tokens=%s\n' "$node" "$device" "$id" "$tokens"
