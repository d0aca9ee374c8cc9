# The program alone: no shell, no user but the one it runs as, nothing that it writes to. The folder
# .git belongs to what is built, as the program says which commit it is.
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
# Beyond loopback, as in a container nobody else is on it: serve then wants tls, tokens, or insecure.
ENV CARETAKER_LISTEN=0.0.0.0:50051 CARETAKER_METRICS_LISTEN=0.0.0.0:9464
EXPOSE 50051 9464
USER 65532:65532
ENTRYPOINT ["/caretaker"]
CMD ["serve"]
