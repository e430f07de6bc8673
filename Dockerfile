# docker build --tag kvark .
# docker run --rm --interactive --tty --volume kvark-models:/models kvark chat

FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo install --path crates/cli --locked --root /installed

FROM debian:bookworm-slim
# pip fetches the models of the catalogue.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3-pip \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /installed/bin/kvark /usr/local/bin/kvark
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/kvark/
COPY completions/kvark.bash /usr/share/bash-completion/completions/kvark
RUN useradd --create-home --uid 10001 kvark \
    && mkdir /models \
    && chown kvark:kvark /models
USER kvark
ENV KVARK_HOME=/models
VOLUME /models
WORKDIR /work
ENTRYPOINT ["kvark"]
CMD ["--help"]
