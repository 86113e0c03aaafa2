# The operator: docker build -f docker/operator.Dockerfile -t octavo-operator:0.1.0 .
# A tag and no digest, so that a rebuild takes the base's security updates; pin a digest with
# --build-arg PYTHON_IMAGE=python@sha256:… where builds have to be the same to the byte.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY docker/constraints-build.txt docker/constraints-operator.txt docker/
RUN python -m venv --without-pip /opt/octavo \
    && pip install -c docker/constraints-build.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY crds crds
COPY engine engine
COPY operator operator
# The wheel is named by its path, so the index is never asked for a package called octavo.
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/octavo/bin/python install -c docker/constraints-operator.txt \
        "octavo[operator] @ file://$(echo /wheels/octavo-*.whl)"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="octavo-operator" \
      org.opencontainers.image.description="The operator of Octavo, which serves large language models on Kubernetes" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# A name for the number: Python's getpass, which kopf calls, fails for a user without one.
RUN groupadd --gid 65532 octavo \
    && useradd --uid 65532 --gid 65532 --no-log-init --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin octavo
COPY --from=build /opt/octavo /opt/octavo
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OCTAVO_HOST=0.0.0.0
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080
ENTRYPOINT ["octavo"]
CMD ["operator"]
