# The command in an image of its own:
#
#   docker build -t compress .
#   docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" compress model.onnx --int8 --data data.npz
FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package compress --bin compress

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="compress" \
      org.opencontainers.image.description="A model compression compiler: ONNX in, smaller and faster ONNX out" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
COPY --from=build /source/target/release/compress /usr/local/bin/compress
COPY --from=build /source/LICENSE-MIT /source/LICENSE-APACHE /usr/local/share/doc/compress/
# A tracking server is known by these.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
USER 10001:10001
WORKDIR /work
ENTRYPOINT ["compress"]
