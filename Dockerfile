# fastscribe on processors. docker build -t fastscribe .
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml LICENSE README.md ./
COPY man man
COPY fastscribe fastscribe
RUN pip wheel --no-deps --wheel-dir /wheels .
# The build of torch for processors, first: no other package then chooses one.
ARG TORCH=torch
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/fastscribe \
    && /opt/fastscribe/bin/pip install --compile --no-cache-dir --index-url "$TORCH_INDEX" "$TORCH" \
    && /opt/fastscribe/bin/pip install --compile --no-cache-dir "$(echo /wheels/*.whl)[eval,remote,vad]"
# The loops of int8 and bf16 models, compiled for the processor that builds the image; any other compiles them at its first run.
ENV NUMBA_CACHE_DIR=/opt/fastscribe/numba
COPY scripts/__init__.py scripts/random_checkpoint.py scripts/shapes.py scripts/
RUN /opt/fastscribe/bin/python -m scripts.random_checkpoint indicconformer_stt_hi_hybrid_ctc_rnnt_large /tmp/model \
    && /opt/fastscribe/bin/fastscribe bench --latency 1 --durations-s 4 --quick --device cpu --dtype int8 --dtype bf16 \
        --model /tmp/model \
    && rm -r /tmp/model && chmod -R a+rwX "$NUMBA_CACHE_DIR"

FROM python:${PYTHON}-slim
# Models go to /models. Anyone may write there, so that --user works.
RUN useradd --uid 10001 --create-home fastscribe && mkdir --mode=1777 /models
# The base image has Python's own modules without bytecode, which no user of the container could store.
RUN python -m compileall -q "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" || true
COPY --from=build /opt/fastscribe /opt/fastscribe
ENV PATH=/opt/fastscribe/bin:$PATH HF_HOME=/models NUMBA_CACHE_DIR=/opt/fastscribe/numba
VOLUME /models
USER fastscribe
WORKDIR /audio
ENTRYPOINT ["fastscribe"]
CMD ["--help"]
