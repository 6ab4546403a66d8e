# syntax=docker/dockerfile:1
# The daemon: no vLLM, no torch. Build from the project's root:
#   docker build --file docker/sessiond.Dockerfile --tag sessiond .

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY sessiond sessiond
COPY cli cli
COPY migrations migrations
RUN python -m venv /opt/sessiond \
    && /opt/sessiond/bin/pip install --no-cache-dir ".[server,cli]"

FROM python:3.12-slim
# The same uid as in the engine's image: both read and write one store (mode 0700).
RUN groupadd --gid 10001 sessiond \
    && useradd --uid 10001 --gid sessiond --create-home sessiond \
    && install --directory --owner sessiond --group sessiond --mode 0700 /var/lib/sessiond
COPY --from=build /opt/sessiond /opt/sessiond
ENV PATH=/opt/sessiond/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SESSIOND_STORE_ROOT=/var/lib/sessiond/store
USER 10001:10001
VOLUME /var/lib/sessiond
EXPOSE 8600
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8600/readyz', timeout=4)"]
ENTRYPOINT ["sessiond"]
CMD ["serve"]
