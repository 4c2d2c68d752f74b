# SPDX-License-Identifier: Apache-2.0

# Every module of the workspace is built, tested and linted by one command each; `make` alone lists them.

LINT_VERSION := 2.15.0
LINT         := bin/golangci-lint-$(LINT_VERSION)
PLATFORMS    := linux/amd64 darwin/arm64 windows/amd64
PROCESSORS   := linux/arm64 linux/386
BENCH        := .
BENCHTIME    := 1s
BASE         := HEAD
RUN          :=
FUZZTIME     := 20s

.DEFAULT_GOAL := help
.PHONY: help yodel console test test-all test-timing lint microbench bench bench-full bench-wires bench-pair bench-check bench-test peer-test fuzz build-all alone chaos

# GOTEST runs the tests. CI replaces it by a runner that keeps the events.
GOTEST := go test
# These packages judge allocations, memory, time or speed, which the race detector and other packages change: they also
# run without the one, and not beside the others.
TIMED := . ./internal/mux ./internal/torture ./middleware/... ./balance ./recommended ./restart ./conformance/attacks ./conformance/overload ./compress/klauspost
# These need another system's server for nearly every test, and minutes to build. The attacks judge latencies, which the
# tests of other packages change: test-timing runs them alone.
SERVED := /(conformance/attacks|registry/etcd|registry/redis|registry/zookeeper|middleware/redis|examples/cluster)$$

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## vet and test all that needs no other server, in minutes; test-all adds the race detector
	$(GOTEST) -vet=all -p 4 $$(go list work | grep -Ev '$(SERVED)')

test-all: ## vet and test everything, with real servers: what a change has to pass
	YODEL_REAL=1 $(GOTEST) -race -vet=all -timeout 30m work

test-timing: ## test without the race detector what judges allocations, memory, time or speed
	YODEL_REAL=1 $(GOTEST) -count=1 -p 1 -timeout 30m $(TIMED)

lint: $(LINT) ## run golangci-lint over every module
	$(LINT) config verify
	$(LINT) run $$(go list -m -f '{{.Dir}}/...')

$(LINT):
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT_VERSION)
	mv bin/golangci-lint $@

chaos: ## keep registries from fleets for a minute at a time, and restart fleets 20 times: 10 minutes for each registry
	@for registry in etcd zookeeper; do \
		(cd registry/$$registry && go test -v -run 'TestChaos|TestRollingRestart|TestManyInstances' -timeout 30m -fleet.long .) || exit 1; \
	done

yodel: ## build the command yodel into bin, at half its size: without debug information and the traces of grpc-go
	go build -tags grpcnotrace -ldflags '-s -w' -o bin/yodel ./cmd/yodel

console: ## build the front end of the console, which is embedded and committed: needs Node.js
	cd console/web && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm run build

microbench: ## run the root's benchmarks: BENCH is a pattern, BENCHTIME how long each runs
	go test -run='^$$' -bench='$(BENCH)' -benchtime=$(BENCHTIME) -benchmem .

bench: ## measure yodel beside other frameworks for Go, in under 10 minutes: bench/README.md
	cd bench && go run .

bench-full: ## measure all scenarios and frameworks, also on the JVM, for two hours, and write docs/benchmarks
	cd bench && go run . -full -json ../docs/benchmarks/results.json -csv ../docs/benchmarks/results.csv -page ../docs/benchmarks

bench-wires: ## measure servers of unchanged clients of gRPC, rpcx and Thrift, and write docs/benchmarks/wires
	cd bench && go run . -run '^(grpc|rpcx|thrift)-' -rounds 5 -warmup 500ms -measure 1s -page ../docs/benchmarks/wires

bench-pair: ## measure this tree beside another commit, in 9 rounds: BASE is the commit, RUN a pattern of scenarios
	cd bench && go run . -pair '$(BASE)' -run '$(RUN)'

bench-check: ## measure for a minute whether yodel is still ahead
	cd bench && go run . -check

# The frameworks' own programs are left out, but for the light ones: their dependencies take minutes to build. The last
# line shows that the suite works, not how fast anything is.
bench-test: ## test the suite that compares frameworks, and run a little of each kind of it
	@for folder in bench bench/message bench/peer; do \
		echo "test $$folder"; \
		(cd "$$folder" && GOWORK=off go vet ./... && GOWORK=off go test ./...) || exit 1; \
	done
	@for peer in yodel yodel-chain yodel-still yodel-wires raw netrpc; do \
		echo "test bench/peers/$$peer"; \
		(cd "bench/peers/$$peer" && GOWORK=off go vet ./... && GOWORK=off go test ./...) || exit 1; \
	done
	cd bench && go run . -peers yodel,raw,netrpc -run '^(closed-10|async-echo|open-5k|stream|mixed|plain-gob-1|kiss-K1|kiss-T2|thrift-100)$$' -rounds 1

# They need the modules of the other frameworks, and stand outside of the workspace. Rpcx's own client has a data race.
peer-test: ## test the protocols of other frameworks with those frameworks themselves
	@for folder in conformance/connect conformance/dubbo conformance/grpc conformance/observe conformance/rpcx conformance/thrift; do \
		echo "test $$folder"; \
		race=-race; [ "$$folder" != conformance/rpcx ] || race=; \
		(cd "$$folder" && GOWORK=off go vet ./... && YODEL_REAL=1 GOWORK=off go test $$race ./...) || exit 1; \
	done

# Go 1.26 may end a target that found nothing with "context deadline exceeded" when its time is up (go.dev/issue/75804).
# Such a run is repeated, twice at most: one that hangs does so each time. A target that found something says where it wrote the input.
fuzz: ## run every fuzz target for FUZZTIME
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	fuzz() { (cd "$$folder" && go test -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) .) >"$$log" 2>&1; }; \
	ran_out() { grep -q '^ *context deadline exceeded$$' "$$log" && ! grep -q 'Failing input' "$$log"; }; \
	grep -rEo --include='*_test.go' --exclude-dir=bench '^func Fuzz[A-Za-z0-9_]*' . | grep -vE '^./conformance/(connect|rpcx|thrift)/' | sort | \
	while IFS=: read -r file func; do \
		folder=$${file%/*} target=$${func#func }; \
		echo "fuzz $$folder $$target"; \
		fuzz || { ran_out && fuzz; } || { ran_out && fuzz; } || { cat "$$log"; exit 1; }; \
		tail -n 1 "$$log"; \
	done

# The example with etcd in it is left out: it takes minutes for each platform, and what it uses of the rest is built anyway.
build-all: ## build every module for every system, and the root module for other processors
	@packages=$$(go list -f '{{if .GoFiles}}{{.ImportPath}}{{end}}' work | grep -v /examples/cluster); \
	for platform in $(PLATFORMS); do \
		echo "build $$platform"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -o /dev/null $$packages || exit 1; \
	done
	@for platform in $(PROCESSORS); do \
		echo "build $$platform, the root module"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go build ./... || exit 1; \
	done

# The root is not published yet, so a copy of each go.mod says where the modules of the workspace are. The go.mod files
# themselves replace nothing: that would break go install.
alone: ## build each module without the workspace, as its users do
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	replace=$$(go list -m -f '-replace={{.Path}}={{.Dir}}'); \
	for folder in $$(go list -m -f '{{.Dir}}'); do \
		echo "build .$${folder#$(CURDIR)} alone"; \
		rm -f "$$copy"/*; \
		cp "$$folder"/go.[ms]* "$$copy" && go mod edit $$replace "$$copy/go.mod" && \
		(cd "$$folder" && GOWORK=off go build -modfile="$$copy/go.mod" -o /dev/null ./...) || exit 1; \
	done
