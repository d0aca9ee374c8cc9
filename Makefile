# Everything runs with Go alone. tools/ pins the versions of buf, the protobuf plugins, golangci-lint
# and Vale. The Makefile works with make 3.81 and POSIX sh.

GO         = go
BUF        = $(GO) tool -modfile=tools/buf/go.mod buf
LINTER     = $(GO) tool -modfile=tools/lint/go.mod golangci-lint
VALE       = $(GO) tool -modfile=tools/vale/go.mod vale --no-global --config=tools/vale/vale.ini
# The files whose English make prose checks.
TEXTS      = $(shell git ls-files '*.md' '*.go' '*.proto' '*.html' ':!gen' ':!*testdata*')
# The race detector is for CI, or make test RACE=-race.
RACE       =
# Clones in other folders share one build cache.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath
# Without it each program ends a second later under the race detector, and the tests start hundreds.
export GORACE = atexit_sleep_ms=0
# The longest packages come first, so that no core is idle at the end.
PACKAGES   = ./service ./service/lfk ./cli ./service/gitlab/group ./service/gitlab/ghost ./server ./service/lfk/orphans ./service/gitlab/deletion ./...
TEST_ARGS  =
# Name prefixes of fault tests and of page tests.
FAULTS     = ^TestFault_
PAGES      = ^TestPages_
# In make test PostgreSQL plans a statement once a connection, unless TEST_ARGS selects tests.
PLAN_ONCE  = CARETAKER_TEST_PLANS=force_generic_plan
# Name prefix of the tests with other extensions and tools.
NEIGHBOURS = ^TestNeighbour_
# Names of the tests that check plans on big tables.
PLANS      = PlansKeepToIndexes|^TestPlans_
# The packages that start goroutines. CI tests them under the race detector.
CONCURRENT = ./service/run/... ./service/schedule ./service/job ./scheduler ./server ./web ./access ./telemetry
BENCH_ARGS =
SCALE_ARGS =
FAULTS_ARGS =
SOAK_ARGS  =
# The time of each target.
FUZZ_TIME  = 10m
DEV_ARGS   =
# A major version of PostgreSQL, 14 to 18.
VERSION    =
NEWEST     = 18
# Tests whose result can depend on the version of PostgreSQL: SQL, plans, DDL, workers, the pipeline.
VERSIONED  = TestSQL_|PlansKeepToIndexes|TestCatalog_|TestInstallQueue_|TestTrack_|TestShards_|TestContract|PipelineOracle
# The platforms of make release. Empty: linux and darwin, amd64 and arm64.
PLATFORMS  =

.DEFAULT_GOAL := help
.PHONY: help run build release man test test-plans test-race test-docs test-postgres test-newest test-faults test-routed test-neighbours faults fuzz test-web pictures test-prometheus test-jaeger test-clients test-packages test-deploy jaeger check check-all lint prose generated proto sixth-worker bench bench-once scale soak generate format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

run: ## start caretaker with a database of its own and demo data (DEV_ARGS="--listen ADDR")
	@tools/require.sh postgres
	@echo "Building caretaker: about two minutes the first time, then seconds."
	@$(MAKE) --no-print-directory build
	@echo "Starting a PostgreSQL with demo data, and the server: about ten seconds. Ctrl-C stops both."
	@bin/caretaker dev --tour $(DEV_ARGS)

build: ## build bin/caretaker
	$(GO) build -o bin/caretaker .

release: ## build archives, packages, bills of materials and checksums of the last commit into dist (PLATFORMS=linux/amd64)
	tools/release.sh $(PLATFORMS)

man: ## write the manual pages into bin/man
	$(GO) run ./tools/manpages bin/man/man1

test: ## run all tests of behaviour, in about three minutes (PACKAGES=./repo TEST_ARGS="-run NAME -v" RACE=-race)
	@tools/require.sh postgres pgbouncer $(if $(RACE),compiler)
	@$(if $(findstring -run,$(TEST_ARGS)),,$(PLAN_ONCE)) tools/gotest.sh -timeout 60m $(RACE) $(if $(findstring -run,$(TEST_ARGS)),,-skip '$(FAULTS)|$(PAGES)|$(PLANS)|$(NEIGHBOURS)') $(TEST_ARGS) $(PACKAGES)

test-plans: ## check on big tables that every statement uses an index
	@tools/require.sh postgres
	@tools/gotest.sh -timeout 60m -run '$(PLANS)' $(TEST_ARGS) ./repo/... ./service/...

test-race: ## run the tests of the packages that start goroutines under the race detector
	@$(MAKE) --no-print-directory test RACE=-race PACKAGES="$(CONCURRENT)"

test-faults: ## run the tests of outages, crashes, replicas, poolers and load
	@tools/require.sh postgres pgbouncer $(if $(RACE),compiler)
	@tools/gotest.sh -timeout 60m $(RACE) -run '$(FAULTS)' $(TEST_ARGS) $(PACKAGES)

test-routed: ## run the tests of loose foreign keys with records in a routed queue of GitLab
	@tools/require.sh postgres pgbouncer $(if $(RACE),compiler)
	@CARETAKER_TEST_ROUTED=1 tools/gotest.sh -timeout 60m $(RACE) $(TEST_ARGS) ./service/lfk ./service/lfk/admin

test-neighbours: ## run the tests with pg_partman, pg_repack, pglogical, pg_cron and a promoted standby
	@tools/require.sh postgres neighbours $(if $(RACE),compiler)
	@CARETAKER_TEST_NEIGHBOURS=1 tools/gotest.sh -timeout 60m $(RACE) -run '$(NEIGHBOURS)' $(TEST_ARGS) ./service/neighbours

test-docs: ## run the commands of README.md and docs (TEST_ARGS="-run TestPages_DoWhatTheySay/docs/concepts/queue.md")
	@tools/require.sh postgres
	@tools/gotest.sh -timeout 60m -run '$(PAGES)' $(TEST_ARGS) ./docs

faults: ## run ten minutes of faults while replicas work, and check that nothing is lost or done twice (FAULTS_ARGS="-seed 7 -time 1h")
	@tools/require.sh postgres faketime
	$(GO) run ./faults $(FAULTS_ARGS)

fuzz: ## fuzz every parser of files, requests and expressions (FUZZ_TIME=10m, for each)
	@tools/require.sh postgres
	@for folder in $$(grep -rl '^func Fuzz' --include='*_test.go' . | xargs -n 1 dirname | sort -u); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\).*/\1/p' $$folder/*_test.go); do \
			echo "== $$folder $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_TIME) $$folder || exit 1; \
		done; \
	done

test-postgres: ## run tests on another PostgreSQL (VERSION=18 PACKAGES=./repo TEST_ARGS=...), fetched with npm if needed
	@tools/require.sh $(if $(RACE),compiler)
	@programs=$$(tools/postgres.sh "$(VERSION)") && PATH="$$programs:$$PATH" && export PATH && \
		tools/gotest.sh -timeout 60m $(RACE) $(if $(TEST_ARGS),,-skip '$(FAULTS)|$(PAGES)|$(NEIGHBOURS)') $(TEST_ARGS) $(PACKAGES)

test-newest: ## run the tests of SQL, plans, workers and the pipeline on the newest PostgreSQL
	@$(MAKE) test-postgres VERSION=$(NEWEST) PACKAGES="./repo/... ./service/..." TEST_ARGS="-run '$(VERSIONED)'"

test-web: ## test the status page in a headless Chromium and with axe-core, fetched with npm if need be
	@tools/require.sh postgres chromium $(if $(RACE),compiler)
	$(GO) test -timeout 60m $(RACE) -tags chromium -run TestChromium $(TEST_ARGS) ./web

pictures: ## take the documentation's pictures of the status page
	@tools/require.sh postgres chromium
	$(GO) test -timeout 60m -tags chromium -run TestChromium_TakesThePictures ./web -args -pictures="$(CURDIR)/docs/images"

test-prometheus: ## test alerts and dashboard with a real Prometheus, which sees the cause of each alert
	@tools/require.sh postgres prometheus $(if $(RACE),compiler)
	$(GO) test -timeout 60m $(RACE) -tags prometheus -run TestPrometheus $(TEST_ARGS) ./cli

test-clients: ## run the documentation's clients in Go, Python and Ruby against a server
	@tools/require.sh postgres clients
	$(GO) test -timeout 60m -tags clients -run TestClients $(TEST_ARGS) ./docs

test-jaeger: bin/jaeger ## run all workers with a real Jaeger and check their traces
	@tools/require.sh postgres $(if $(RACE),compiler)
	$(GO) test -timeout 60m $(RACE) -tags jaeger -run TestJaeger $(TEST_ARGS) ./cli

test-packages: ## build a release twice, compare, and install, upgrade, remove its packages in a bare Debian (as root)
	@tools/require.sh postgres packages
	$(GO) test -timeout 60m -tags packages $(TEST_ARGS) ./deploy

test-deploy: ## check Kubernetes manifests, compose.yaml and the Dockerfile, and test the tools
	cd tools/deploy && $(GO) test -timeout 60m ./...
	cd tools/dependencies && $(GO) test -timeout 60m ./...

jaeger: bin/jaeger ## start Jaeger in memory: OTLP at 4317 and 4318, query API at 16686 (ports: JAEGER_*_PORT)
	bin/jaeger --config tools/jaeger/config.yaml

# This takes a few minutes the first time.
bin/jaeger: tools/jaeger/go.mod tools/jaeger/go.sum
	$(GO) build -modfile=tools/jaeger/go.mod -o bin/jaeger github.com/jaegertracing/jaeger/cmd/jaeger

check: ## run the checks of CI for the change since the published main
	@.ci/run

check-all: ## run every check, for a release: about four hours
	$(MAKE) test RACE=-race
	$(MAKE) test-plans
	$(MAKE) test-faults RACE=-race
	$(MAKE) test-routed
	$(MAKE) test-neighbours
	for version in 14 15 16 17 18; do $(MAKE) test-postgres VERSION=$$version PACKAGES="./repo/... ./service/..." TEST_ARGS="-run '$(VERSIONED)'" || exit 1; done
	$(MAKE) test-docs test-web test-prometheus test-jaeger test-clients test-packages test-deploy sixth-worker
	$(MAKE) lint generated proto bench-once
	$(MAKE) faults FAULTS_ARGS="-time 1h"
	$(MAKE) fuzz FUZZ_TIME=1m

lint: prose ## check the Go code with golangci-lint, and the English
	$(LINTER) run

prose: ## check the English of docs, comments, help and the API (TEXTS=docs/jobs.md)
	@$(VALE) $(TEXTS)
	@$(GO) run ./tools/clidoc texts | $(VALE) --ext=.md

generated: ## check that generated code and documents are up to date
	@tools/generated.sh

sixth-worker: ## check that the worker of CONTRIBUTING.md builds and passes its tests
	@tools/require.sh postgres
	@$(GO) run ./tools/testcluster tools/sixth_worker.sh

proto: ## check the API: format, style, compatibility
	$(BUF) format --diff --exit-code
	$(BUF) lint
	@tools/breaking.sh

bench: ## run the benchmarks that compare caretaker with plain SQL (BENCH_ARGS=...)
	@tools/require.sh postgres
	$(GO) run ./bench $(BENCH_ARGS)

bench-once: ## run every benchmark once, on the smallest data
	@tools/require.sh postgres
	$(GO) test -timeout 60m -run '^$$' -bench . -benchtime 1x $(PACKAGES)
	$(GO) run ./bench -quick
	$(GO) run ./bench -quick -scale
	$(GO) run ./bench/soak -quick

scale: ## measure curves over growing sizes and draw them into docs/images (SCALE_ARGS="-only backlog,children -rows 1000000 -full")
	@tools/require.sh postgres
	$(GO) run ./bench -scale -images docs/images $(SCALE_ARGS)

soak: ## run two servers for hours and report what grows (SOAK_ARGS="-time 4h")
	@tools/require.sh postgres
	$(GO) run ./bench/soak $(SOAK_ARGS)

generate: ## write the generated code and documents
	$(BUF) generate
	$(GO) generate ./...
	cd tools/dependencies && $(GO) run . notice ../.. > ../../NOTICE.new
	mv NOTICE.new NOTICE

format: ## format the Go code and the API
	$(LINTER) fmt
	$(BUF) format --write

clean: ## remove builds and kept test databases
	rm -rf bin dist
	$(GO) run ./tools/testcluster -clean
