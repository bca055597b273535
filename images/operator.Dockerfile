# The operator. Everything but Debian's own packages comes from build/wheels, so the build needs no package registry:
#
#   pip download --require-hashes --only-binary :all: -r requirements/operator.lock -d build/wheels/operator
#   docker build -f images/operator.Dockerfile -t ghcr.io/paddock-dev/operator:0.1.0 .
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS python
RUN command -v python3 > /dev/null || { apt-get update && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*; }

FROM python AS dependencies
RUN python3 -c "import ensurepip" 2> /dev/null || { apt-get update && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*; }
COPY build/wheels/operator /wheels
RUN python3 -m venv /opt/paddock \
    && /opt/paddock/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && /opt/paddock/bin/pip uninstall -q -y pip setuptools \
    && echo /opt/paddock/app > "$(echo /opt/paddock/lib/python3*/site-packages)/paddock.pth" \
    && printf '%s\n' '#!/opt/paddock/bin/python' 'import sys' 'from paddock.controller.main import main' 'sys.exit(main())' \
       > /opt/paddock/bin/paddock-operator \
    && chmod 755 /opt/paddock/bin/paddock-operator

FROM dependencies AS package
COPY operator/paddock /opt/paddock/app/paddock
# The container's file system is read-only: what is not compiled here would be compiled at every start.
RUN /opt/paddock/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/paddock/app

FROM python
# Two layers: the first changes with the lock file, the second, small, with every commit.
COPY --from=dependencies /opt/paddock /opt/paddock
COPY --from=package /opt/paddock/app /opt/paddock/app
ENV PATH=/opt/paddock/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["/opt/paddock/bin/paddock-operator"]
