# Build:     docker build --tag bertaccum .
#            docker build --tag bertaccum:gpu --build-arg EXTRAS=gpu .
# Run:       docker run --rm --init -v bertaccum-cache:/cache -v "$PWD":/work bertaccum doctor
# With GPUs: docker run --rm --init --gpus all -v bertaccum-cache:/cache -v "$PWD":/work bertaccum:gpu doctor
ARG PYTHON_VERSION=3.13
FROM python:${PYTHON_VERSION}-slim-bookworm

# Extras of bertaccum, separated by commas: gpu, huggingface, parquet, serve.
ARG EXTRAS=""
WORKDIR /opt/bertaccum

# The requirements are installed first, in a separate layer, so that a change of the source code does
# not install TensorFlow again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY bertaccum/__init__.py bertaccum/version.py bertaccum/
RUN python -m pip install --no-cache-dir --constraint constraints.txt ".${EXTRAS:+[${EXTRAS}]}"

COPY bertaccum bertaccum
COPY data_prep data_prep
RUN python -m pip install --no-cache-dir --no-deps --force-reinstall .

# Most Linux systems give their first user the ID 1000. Files in a mounted folder then belong to that
# user. For another user, use `docker run --user`.
RUN useradd --uid 1000 --create-home bertaccum \
    && install --directory --owner=bertaccum /cache /work
# All downloads go to the volume: users with other IDs have no home folder.
ENV BERTACCUM_CACHE=/cache HF_HOME=/cache/huggingface TFDS_DATA_DIR=/cache/tensorflow_datasets
VOLUME /cache
WORKDIR /work
USER bertaccum
ENTRYPOINT ["bertaccum"]
