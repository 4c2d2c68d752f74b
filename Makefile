# SPDX-License-Identifier: Apache-2.0

# Every module of the workspace is built, tested and linted by one command each; `make` alone lists them.

LINT_VERSION := 2.15.0
LINT         := bin/golangci-lint-$(LINT_VERSION)
PLATFORMS    := darwin/arm64 windows/amd64
PROCESSORS   := linux/arm64 linux/386
BENCH        := .
BENCHTIME    := 1s
BASE         := HEAD
RUN          :=
FUZZTIME     := 20s

RACE         :=
VET          := -vet=all
P            := 4
# How long the tests of a package may take. Beside those of two others, with the race detector, cmd/yodel may need more.
LIMIT        := 5m

.DEFAULT_GOAL := help
.PHONY: help yodel console test test-all test-timing contracts servers before-end lint microbench bench bench-full bench-actors bench-wires bench-pair bench-check bench-test peer-test fuzz build-root build-all alone chaos rolling locks

# It runs each failed test once more, alone, and counts in its last line: internal/gate.
override GATE := $(CURDIR)/bin/gate
# These need another system's server for nearly every test, and minutes to build. Without YODEL_REAL they are left out.
SERVED := /(conformance/attacks|registry/etcd|registry/redis|registry/zookeeper|middleware/redis|examples/cluster)$$
# The tests of the contracts of codecs.
CONTRACTS := ^Test(Codec|Contract|KeepsTheContract|RawKeepsTheContract|JSONKeepsTheContract)$$
# The modules of these need those of other frameworks, and stand outside of the workspace.
PEERS := conformance/connect conformance/dubbo conformance/gateway conformance/grpc conformance/observe conformance/rpcx conformance/thrift

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(GATE): $(filter-out %_test.go,$(wildcard internal/gate/*.go))
	go build -buildvcs=false -o $@ ./internal/gate

test: $(GATE) ## vet and test all that needs no other server, in minutes
	$(GATE) test $(RACE) $(VET) -p=$(P) -timeout=$(LIMIT) $(if $(YODEL_REAL),work,$$(go list work | grep -Ev '$(SERVED)'))

test-all: servers ## make test with the race detector and real servers: what a change has to pass
	YODEL_REAL=$(or $(YODEL_REAL),1) $(MAKE) test RACE=-race P=3 LIMIT=20m

# One package at a time is tested; what they need is compiled before, on all processors. The step before
# tests the contracts of codecs with the race detector, except for values that take a minute: make contracts. All cells of
# conformance/everywhere take 3 minutes on a busy machine.
test-timing: $(GATE) ## test without the race detector, one by one, what judges allocations, memory, time or speed
	all=$$($(GATE) measured) && go list -export -test $$(printf '%s\n' $$all | grep -v '^-') >/dev/null && \
	$(GATE) test -count=1 -p=1 -timeout=10m -skip='$(CONTRACTS)' $$all

contracts: $(GATE) ## test codecs without the race detector, also with values that take a minute
	$(GATE) test -p=1 -run='$(CONTRACTS)' -timeout=15m $$(go list work | grep -E '/codec/|/custom/codec$$|/yodeltest$$')

# Tests that start a server would otherwise wait minutes until it is built.
servers: $(GATE) ## build and download the servers that tests start, into the cache of the user
	YODEL_REAL=$(or $(YODEL_REAL),1) $(GATE) test -run=TestProgramsAreMade -parallel=2 -timeout=30m ./internal/realserver

before-end: $(GATE) ## run everything that is too long for CI, for 3 hours: long forms, fuzzing, peers in other languages
	GOFLAGS="$$GOFLAGS -buildvcs=false" $(GATE) steps .ci/before-end

locks: $(GATE) ## compare the order in which the tests of the core take locks with docs/locks.md: 10 minutes
	$(GATE) test -run=TestLocksAreTakenInTheOrderOfThePage -timeout=30m ./internal/house -args -locks

# The modules, each with a last slash. With RACE the example with etcd's server in it is left out, which nothing else needs then.
MODULES = go list -m -f '{{.Dir}}/' | grep -v '$(if $(RACE),/examples/cluster/,^$$)'

# The linter has every package compiled. CI has it compiled for the race detector, as its tests need it.
lint: $(LINT) ## run golangci-lint over every module
	$(LINT) config verify
	GOFLAGS="$$GOFLAGS $(RACE)" $(LINT) run $$($(MODULES) | sed 's/$$/.../')

# The linter is built with the flags of the test servers: what they share is compiled once.
$(LINT):
	GOBIN=$(CURDIR)/bin CGO_ENABLED=0 go install -trimpath -gcflags=all=-l github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT_VERSION)
	mv bin/golangci-lint $@

chaos: $(GATE) ## keep registries from fleets for a minute at a time, and restart fleets 20 times: 10 minutes for each registry
	$(GATE) test -p=1 -run='TestChaos|TestRollingRestart|TestManyInstances' -timeout=30m ./registry/etcd ./registry/zookeeper -args -fleet.long

rolling: $(GATE) ## restart servers in turn under unchanged clients of other frameworks until each has 100,000 answers: 15 minutes
	@for folder in conformance/rolling conformance/grpc conformance/rpcx conformance/thrift conformance/connect conformance/dubbo; do \
		echo "restart servers under the clients of $$folder"; \
		(cd "$$folder" && GOWORK=off YODEL_REAL=1 $(GATE) test -count=1 -run=TestRollingRestarts -timeout=15m . -args -rolling.long) || failed=1; \
	done; [ -z "$$failed" ]

yodel: ## build the command yodel into bin, at half its size: without debug information and the traces of grpc-go
	go build -tags grpcnotrace -ldflags '-s -w' -o bin/yodel ./cmd/yodel

console: ## build the front end of the console, which is embedded and committed: needs Node.js
	cd console/web && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm run build

microbench: ## run the root's benchmarks: BENCH is a pattern, BENCHTIME how long each runs
	go test -run='^$$' -bench='$(BENCH)' -benchtime=$(BENCHTIME) -benchmem -timeout=$(LIMIT) .

bench: ## measure yodel beside other frameworks for Go, in under 10 minutes: bench/README.md
	cd bench && go run .

bench-full: ## measure all scenarios and frameworks, also on the JVM, for two hours, and write docs/benchmarks
	cd bench && go run . -full -json ../docs/benchmarks/results.json -csv ../docs/benchmarks/results.csv -page ../docs/benchmarks

bench-actors: ## measure actors beside those of other frameworks, and write docs/benchmarks/actors
	cd bench && go run . -run '^actor-' -java -rounds 3 -measure 1s -warmup 500ms -page ../docs/benchmarks/actors

bench-wires: ## measure servers of unchanged clients of gRPC, Connect, rpcx and Thrift, and write docs/benchmarks/wires
	cd bench && go run . -run '^(grpc|connect|rpcx|thrift)-' -rounds 5 -warmup 500ms -measure 1s -page ../docs/benchmarks/wires

bench-pair: ## measure this tree beside another commit, in 9 rounds: BASE is the commit, RUN a pattern of scenarios
	cd bench && go run . -pair '$(BASE)' -run '$(RUN)'

bench-check: ## measure for a minute whether yodel is still ahead
	cd bench && go run . -check

# The frameworks' own programs are left out, but for the light ones: their dependencies take minutes to build. The last
# line shows that the suite works, not how fast anything is.
bench-test: $(GATE) ## test the suite that compares frameworks, and run a little of each kind of it
	@for folder in bench bench/message bench/peer bench/peers/yodel bench/peers/yodel-chain bench/peers/yodel-still bench/peers/yodel-wires bench/peers/raw bench/peers/netrpc; do \
		echo "test $$folder"; \
		(cd "$$folder" && GOWORK=off $(GATE) test -vet=all -timeout=5m ./...) || failed=1; \
	done; [ -z "$$failed" ]
	cd bench && go run . -peers yodel,raw,netrpc -run '^(closed-10|async-echo|open-5k|stream|mixed|plain-gob-1|kiss-K1|kiss-T2|thrift-100)$$' -rounds 1

# Two modules are tested at a time, because a test of one mostly waits for one process at a time. A module that fails does
# not end the others. Rpcx's own client has a data race.
peer-test: $(GATE) ## test the protocols of other frameworks with those frameworks themselves; YODEL_REAL=all adds other languages
	@printf '%s\n' $(PEERS) | YODEL_REAL=$(or $(YODEL_REAL),1) GOWORK=off xargs -P 2 -I FOLDER sh -c ' \
		echo "test FOLDER"; \
		race=-race; [ FOLDER != conformance/rpcx ] || race=; \
		cd FOLDER && $(GATE) test $$race -vet=all -timeout=5m ./...'

# Two targets run at a time, each on a processor of its own. A target that fails does not end the others.
fuzz: ## run every fuzz target for FUZZTIME
	@grep -rEo --include='*_test.go' --exclude-dir=bench '^func Fuzz[A-Za-z0-9_]*' . | sort | \
	while IFS=: read -r file func; do \
		folder=$${file%/*} work=; \
		for peer in $(PEERS); do [ "$$folder" != "./$$peer" ] || work=off; done; \
		echo "GOWORK=$$work .ci/fuzz $(FUZZTIME) $$folder $${func#func }"; \
	done | xargs -L 1 -P 2 env

# Only the root module has files for one system or another. The other modules take minutes for each system. A test in
# internal/house checks the types of the root module for these platforms.
build-root: ## build the root module for other systems and processors
	@for platform in $(PLATFORMS) $(PROCESSORS); do \
		echo "build $$platform, the root module"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go build ./... || exit 1; \
	done

# The example with etcd in it is left out: it takes minutes for each platform, and what it uses of the rest is built anyway.
build-all: build-root ## build every module for every system, and the root module for other processors
	@packages=$$(go list -f '{{if .GoFiles}}{{.ImportPath}}{{end}}' work | grep -v /examples/cluster); \
	for platform in $(PLATFORMS); do \
		echo "build $$platform"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -o /dev/null $$packages || exit 1; \
	done

# The root is not published yet, so a copy of each go.mod says where the modules of the workspace are. The go.mod files
# themselves replace nothing: that would break go install. A package compiles alone as it does in the workspace if all that
# it imports is there in the same version. So nothing is compiled twice.
alone: ## check that each module, without the workspace, has what it imports, in the versions of the workspace
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	versions='{{with .Module}}{{if not (or .Main .Replace)}}{{.Path}}@{{.Version}}{{end}}{{end}}'; \
	replace=$$(go list -m -f '-replace={{.Path}}={{.Dir}}'); \
	go list -deps -test -f "$$versions" work >"$$copy/listed" && sort -u "$$copy/listed" >"$$copy/workspace" || exit 1; \
	for folder in $$($(MODULES)); do \
		rm -f "$$copy"/go.*; \
		cp "$$folder"/go.[ms]* "$$copy" && go mod edit $$replace "$$copy/go.mod" && \
		(cd "$$folder" && GOWORK=off go list -modfile="$$copy/go.mod" -deps -test -f "$$versions" ./...) >"$$copy/listed" && \
		sort -u "$$copy/listed" | comm -23 - "$$copy/workspace" >"$$copy/others" || { echo ".$${folder#$(CURDIR)}, alone, cannot be built" >&2; failed=1; continue; }; \
		[ ! -s "$$copy/others" ] || { echo ".$${folder#$(CURDIR)}, alone, has other versions than the workspace:" >&2; cat "$$copy/others" >&2; failed=1; }; \
	done; [ -z "$$failed" ]
