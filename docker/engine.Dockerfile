# syntax=docker/dockerfile:1
# vLLM's official image with sessiond's connector. Build from the project's root:
#   docker build --file docker/engine.Dockerfile --tag sessiond-engine .

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY sessiond sessiond
COPY cli cli
COPY migrations migrations
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM vllm/vllm-openai:v0.32.0
# Only the bare package: what vLLM brought along stays as it was tested.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    uv pip install --system --no-cache /wheels/*.whl
# The same uid as in the daemon's image: both read and write one store (mode 0700).
RUN groupadd --gid 10001 sessiond \
    && useradd --uid 10001 --gid sessiond --create-home sessiond \
    && install --directory --owner sessiond --group sessiond --mode 0700 \
        /var/lib/sessiond /home/sessiond/.cache
# 'sessiond engine' adds the connector, kv_load_failure_policy "recompute" (vLLM's own default
# fails the request) and the size of the RAM tier to the vLLM options that follow it.
ENV HOME=/home/sessiond \
    SESSIOND_STORE_ROOT=/var/lib/sessiond/store
WORKDIR /home/sessiond
USER 10001:10001
VOLUME /var/lib/sessiond
EXPOSE 8000
# Loading a model takes minutes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20m \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["sessiond", "engine"]
