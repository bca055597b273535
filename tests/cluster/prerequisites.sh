#!/usr/bin/env bash
# Installs the Debian packages that the local cluster and its images need. Asks the package index only when one is missing.
set -euo pipefail

# package -> why it is needed
declare -A reasons=(
  [runc]="starts the containers"
  [containernetworking-plugins]="connects pods to the bridge of their node"
  [nftables]="kube-proxy writes its rules with nft"
  [conntrack]="kube-proxy drops stale connections"
  [iproute2]="makes the bridges"
  [util-linux]="unshare and nsenter: each node has a mount namespace of its own"
  [openssl]="keys and certificates of the control plane"
  [buildah]="builds the images from their Dockerfiles without a daemon"
  [mmdebstrap]="makes the base image, since no image registry is asked"
  [gcc]="compiles the pause program and the pretend GPUs"
  [libc6-dev]="headers for the same"
  [g++]="compiles llama.cpp"
  [make]="the same"
  [cmake]="the same"
  [ca-certificates]="package downloads"
)

missing=()
for package in "${!reasons[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | cut -c2)" = i ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
  echo "the local cluster needs root, and these packages: ${missing[*]}" >&2
  exit 1
fi
echo "installing ${#missing[@]} Debian packages (about half a minute):"
for package in "${missing[@]}"; do printf '  %-28s %s\n' "$package" "${reasons[$package]}"; done
# A source of other software that fails to answer must not stop this: the packages come from Debian's own.
apt-get update -qq || echo "some package sources did not answer; going on" >&2
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
