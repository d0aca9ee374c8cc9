# Everything runs with Go alone: buf, the protobuf plugins and golangci-lint are built from
# the pinned versions in tools/. Works with make 3.81 and POSIX sh.

GO         = go
BUF        = $(GO) tool -modfile=tools/buf/go.mod buf
LINTER     = $(GO) tool -modfile=tools/lint/go.mod golangci-lint
# The race detector is for CI, or make test RACE=-race.
RACE       =
PACKAGES   = ./...
TEST_ARGS  =
# The names of tests of what breaks begin so.
FAULTS     = ^TestFault_
BENCH_ARGS =
DEV_ARGS   =

.DEFAULT_GOAL := help
.PHONY: help run build man test test-faults test-web pictures test-prometheus test-jaeger jaeger check verify lint generated proto sixth-worker bench bench-once generate format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

run: build ## start caretaker with a database of its own and demo data (DEV_ARGS="--listen ADDR")
	@tools/require.sh postgres
	bin/caretaker dev $(DEV_ARGS)

build: ## build bin/caretaker
	$(GO) build -o bin/caretaker .

man: ## write the manual pages into bin/man
	$(GO) run ./tools/manpages bin/man/man1

test: ## run the tests but those of faults (PACKAGES=./repo TEST_ARGS="-run NAME -v" RACE=-race)
	@tools/require.sh postgres $(if $(RACE),compiler)
	$(GO) test -timeout 30m $(RACE) -skip '$(FAULTS)' $(TEST_ARGS) $(PACKAGES)

test-faults: ## run the tests of outages, crashes, replicas, poolers and load
	@tools/require.sh postgres pgbouncer $(if $(RACE),compiler)
	$(GO) test -timeout 40m $(RACE) -run '$(FAULTS)' $(TEST_ARGS) $(PACKAGES)

test-web: ## look at the status page with a headless Chromium
	@tools/require.sh postgres chromium $(if $(RACE),compiler)
	$(GO) test $(RACE) -tags chromium -run TestChromium $(TEST_ARGS) ./web

pictures: ## take the documentation's pictures of the status page again
	@tools/require.sh postgres chromium
	$(GO) test -tags chromium -run TestChromium_TakesThePictures ./web -args -pictures="$(CURDIR)/docs/images"

test-prometheus: ## test alerts and dashboard: a real Prometheus watches servers while each alert is caused
	@tools/require.sh postgres prometheus $(if $(RACE),compiler)
	$(GO) test $(RACE) -tags prometheus -run TestPrometheus $(TEST_ARGS) ./cli

test-jaeger: bin/jaeger ## run all workers against a real Jaeger and look at their traces
	@tools/require.sh postgres $(if $(RACE),compiler)
	$(GO) test $(RACE) -tags jaeger -run TestJaeger $(TEST_ARGS) ./cli

jaeger: bin/jaeger ## start Jaeger with all in memory: OTLP at 4317 and 4318, query API at 16686 (ports: JAEGER_*_PORT)
	bin/jaeger --config tools/jaeger/config.yaml

# A few minutes, the first time.
bin/jaeger: tools/jaeger/go.mod tools/jaeger/go.sum
	$(GO) build -modfile=tools/jaeger/go.mod -o bin/jaeger github.com/jaegertracing/jaeger/cmd/jaeger

check: RACE = -race
check: verify test test-faults test-web test-prometheus test-jaeger sixth-worker ## all that CI checks

verify: lint generated proto bench-once ## all that CI checks, except the tests

lint: ## check the Go code with golangci-lint
	$(LINTER) run

generated: ## check that generated code and documents are up to date
	@tools/generated.sh

sixth-worker: ## check that the worker of CONTRIBUTING.md builds and passes
	@tools/require.sh postgres
	@tools/sixth_worker.sh

proto: ## check the API: format, style, and that nothing published breaks
	$(BUF) format --diff --exit-code
	$(BUF) lint
	@tools/breaking.sh

bench: ## run the benchmarks that compare caretaker with the plain ways (BENCH_ARGS=...)
	@tools/require.sh postgres
	$(GO) run ./bench $(BENCH_ARGS)

bench-once: ## run every benchmark once, as small as can be, to see that it still works
	@tools/require.sh postgres
	$(GO) test -run '^$$' -bench . -benchtime 1x $(PACKAGES)
	$(GO) run ./bench -quick

generate: ## write the generated code and documents
	$(BUF) generate
	$(GO) generate ./...

format: ## format the Go code and the API
	$(LINTER) fmt
	$(BUF) format --write

clean: ## remove what was built
	rm -rf bin
