# `dsv serve` in a container:
#   docker build -t dsv-serve .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/selection:/model:ro" dsv-serve
# /model is the run folder of `dsv select`; of it, the folder `model` is enough.
FROM python:3.12-slim

WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY dsv_plugins ./dsv_plugins
RUN pip install --no-cache-dir ".[serve]" && useradd --create-home judge

USER judge
WORKDIR /home/judge
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["dsv", "serve", "/model", "--host", "0.0.0.0"]
