#!/usr/bin/env bash
# Compiles the pretend GPUs into a folder: build.sh LLAMA OUT, where LLAMA is the compiled llama.cpp of tests/cluster/build.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
llama=${1:?folder of the compiled llama.cpp} out=${2:?output folder}
mkdir -p "$out"
flags=(-std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -s)
backend=("$here/pretend.c" "$here/accounts.c" "$here/fakegpu.c" -isystem "$llama/include" -L"$llama/bin" -lggml -lggml-base -Wl,-rpath,'$ORIGIN')
gcc "${flags[@]}" "${backend[@]}" -o "$out/libggml-cuda.so"
gcc "${flags[@]}" -DPRETEND_VULKAN "${backend[@]}" -o "$out/libggml-vulkan.so"
gcc "${flags[@]}" "$here/pretend.c" "$here/accounts.c" "$here/fakenvml.c" -Wl,-soname,libnvidia-ml.so.1 -o "$out/libnvidia-ml.so.1"
