# llama-server for the CPU, laid out like the official image: programs and libraries in /app. Where the official image can be
# pulled, use that one; this file is for those who must build what they run, and for the test cluster.
#
#   docker build -f images/server.Dockerfile -t ghcr.io/ggml-org/llama.cpp:server-b11434 .
#
# It compiles llama.cpp (about 8 minutes on 2 cores) unless build/llama.cpp holds what tests/cluster/build.sh compiled.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS compiled
# The pattern is a file that may be absent; the other sources are always there.
COPY tests/cluster/build.sh tests/cluster/versions.env build/llama.cpp* /source/
COPY tests/cluster/tools/llama /source/tools/llama
RUN set -eu; \
    if [ ! -x /source/bin/llama-server ]; then \
      apt-get update; \
      apt-get install -y --no-install-recommends ca-certificates cmake g++ libssl-dev make python3-pip; \
      PADDOCK_CACHE=/cache bash /source/build.sh llama; \
      cp -a /cache/llama.cpp-*/. /source/; \
    fi; \
    mkdir /app; \
    cp -a /source/bin/. /source/LICENSE /app/

FROM ${BASE}
RUN ldconfig -p | grep -q libgomp.so.1 && ldconfig -p | grep -q libssl.so.3 || { apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 libssl3 && rm -rf /var/lib/apt/lists/*; }
COPY --from=compiled /app /app
# As the official image does: without it the server would listen on the loopback address alone.
ENV LLAMA_ARG_HOST=0.0.0.0
WORKDIR /app
ENTRYPOINT ["/app/llama-server"]
