# The node agent. It lists devices through the libraries of llama.cpp, so build it FROM the serving image that the nodes use;
# it then lists what its /app holds, and the answer is that of the servers:
#
#   pip download --require-hashes --only-binary :all: -r requirements/agent-lean.lock -d build/wheels/agent
#   docker build -f images/agent.Dockerfile --build-arg BASE=ghcr.io/ggml-org/llama.cpp:server-cuda-b11434 .
#
# From a plain base it brings llama-cpp-python instead, compiled for the nodes' GPUs beforehand:
#
#   CMAKE_ARGS=-DGGML_CUDA=on pip wheel --require-hashes -r requirements/agent.lock -w build/wheels/agent
#   docker build -f images/agent.Dockerfile .
#
# The wheels must fit the Python of the base (3.11 in Debian 12, 3.12 in Ubuntu 24.04).
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS python
USER 0
RUN command -v python3 > /dev/null || { apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 \
    && rm -rf /var/lib/apt/lists/*; }

FROM python AS dependencies
RUN python3 -c "import ensurepip" 2> /dev/null || { apt-get update && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*; }
COPY build/wheels/agent /wheels
RUN python3 -m venv /opt/paddock \
    && /opt/paddock/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && /opt/paddock/bin/pip uninstall -q -y pip setuptools \
    && echo /opt/paddock/app > "$(echo /opt/paddock/lib/python3*/site-packages)/paddock.pth" \
    && for program in agent fetch; do \
       printf '%s\n' '#!/opt/paddock/bin/python' 'import sys' "from paddock.$program.main import main" 'sys.exit(main())' \
       > /opt/paddock/bin/paddock-$program && chmod 755 /opt/paddock/bin/paddock-$program || exit 1; done

FROM dependencies AS package
COPY operator/paddock /opt/paddock/app/paddock
# The container's file system is read-only: what is not compiled here would be compiled at every start.
RUN /opt/paddock/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/paddock/app

FROM python
COPY --from=dependencies /opt/paddock /opt/paddock
COPY --from=package /opt/paddock/app /opt/paddock/app
ENV PATH=/opt/paddock/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONUNBUFFERED=1
WORKDIR /
USER 65532:65532
ENTRYPOINT ["/opt/paddock/bin/paddock-agent"]
CMD []
