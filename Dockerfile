# The agent (and, with the command `cloud`, the cloud twin) for amd64 or arm64: only the files of the Debian package and the libraries that they
# need. There is no shell and no package manager, and only the two volumes are writable.
#
#   npm run package -- --arch arm64
#   podman build --format docker --platform linux/arm64 -t tallygate .
#   podman run --read-only -v tallygate-state:/var/lib/tallygate -v /run/tallygate:/run/tallygate tallygate
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS files
# Set by the engine, from --platform.
ARG TARGETARCH
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates libatomic1 libstdc++6 \
 && rm -rf /var/lib/apt/lists/*
COPY .tallygate/packages/tallygate_*_${TARGETARCH}.deb /packages/
# Exactly one package, so that the version in the image is certain.
RUN test "$(ls /packages | wc -l)" = 1 && dpkg-deb -x /packages/*.deb /package
RUN mkdir -p /image/etc/ssl/certs /image/etc/tallygate /image/tmp /image/usr/lib /image/var/lib/tallygate /image/run/tallygate \
 && mv /package/usr/lib/tallygate /image/usr/lib/tallygate \
 && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
 && printf 'root:x:0:0::/:/nonexistent\ntallygate:x:10001:10001::/var/lib/tallygate:/nonexistent\n' > /image/etc/passwd \
 && printf 'root:x:0:\ntallygate:x:10001:\n' > /image/etc/group \
 && printf 'hosts: files dns\n' > /image/etc/nsswitch.conf \
 && find /image/usr/lib/tallygate \( -name node -o -name '*.node' \) -type f -exec ldd {} + \
    | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/lib[^ ]*\) .*/\1/p' | sort -u \
    | while read -r library; do install -D -m 755 "$library" "/image$library"; done \
 && chown -R 10001:10001 /image/var/lib/tallygate /image/run/tallygate && chmod 1777 /image/tmp

FROM scratch
LABEL org.opencontainers.image.title="tallygate" \
      org.opencontainers.image.description="Token-metered access decisions on the device, online and offline" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=files /image/ /
ENV PATH=/usr/lib/tallygate/runtime NODE_ENV=production SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 10001:10001
VOLUME ["/var/lib/tallygate", "/run/tallygate"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s CMD ["node", "/usr/lib/tallygate/bin/tallygate.js", "status"]
ENTRYPOINT ["node", "/usr/lib/tallygate/bin/tallygate.js"]
CMD ["agent"]
