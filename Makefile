# The version is pinned: a new linter must not fail an old commit.
GOLANGCI_LINT = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.DEFAULT_GOAL := help
.PHONY: help setup tools test check check-cloud build release run profile

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what the tests need and this machine has not: two Redis engines, a C compiler, Chromium and more
	@.ci/setup

tools: setup ## the same: what check-cloud needs is part of it

test: setup ## all tests, with the race detector; what continuous integration runs
	go test -race -shuffle=on -count=1 -timeout=10m ./...

check: ## format, vet, lint
	@out="$$(gofmt -l .)"; test -z "$$out" || { echo "gofmt -w is due in:"; echo "$$out"; exit 1; }
	go vet ./...
	$(GOLANGCI_LINT) run ./...

check-cloud: ## the stacks against the linter, an emulator, the code, the runbooks and the prices; offline
	CI=true go test -count=1 -timeout=5m ./internal/stackcheck ./deploy/cloudwatch ./deploy/cost ./deploy/systemd

build: ## static programs in bin/
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/...

release: ## archives, functions, checksums and lists of contents of the commit, in dist/
	@deploy/release/release

run: ## everything in one process: page, API, worker, reconciler, mock gateway
	go run ./cmd/local

profile: ## processor profiles of the rush and of the rejection path in artefacts/, for go tool pprof; two minutes
	@mkdir -p artefacts
	go build -o artefacts/seatctl ./cmd/seatctl
	artefacts/seatctl rehearse --scale 0.4 --hold 10s --profile artefacts/rush.pprof --out artefacts/rush.html
	artefacts/seatctl bench hotpath --profile artefacts/reject.pprof > artefacts/reject.json
