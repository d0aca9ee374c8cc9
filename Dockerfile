# The image contains only the program and its user: no shell, no writable file. The build needs the
# folder .git, because the program reports its commit.
FROM golang:1.26.8-bookworm AS build
WORKDIR /source
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=auto -ldflags="-s -w" -o /caretaker .

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /source/LICENSE /source/NOTICE /licenses/
COPY --from=build /caretaker /caretaker
# Loopback of a container has no other clients. Other addresses require tls, tokens, or insecure.
ENV CARETAKER_LISTEN=0.0.0.0:50051 CARETAKER_METRICS_LISTEN=0.0.0.0:9464
EXPOSE 50051 9464
USER 65532:65532
ENTRYPOINT ["/caretaker"]
CMD ["serve"]
