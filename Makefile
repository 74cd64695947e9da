# Each target finds a Rust that is new enough, or installs Debian's (scripts/rust.sh).
#
#   make            the programs, in target/release
#   make test       everything that CI runs, from nothing: packages, lint, build, tests, interop, short fuzzing
#   make nightly    the simulations from many more seeds: an hour or more
#   make lint       rustfmt, clippy, documentation, dependencies' licences, the repository's own rules
#   make bench      the experiments; QUICK=1 makes them short, ARGS="..." is passed on (names of experiments, --only, --repeats)
#   make up         a whole cell on this machine
#   make clean      removes what was built

RUST := scripts/rust.sh

.PHONY: build up test nightly lint bench clean

build:
	$(RUST) cargo build --release --workspace --bins
	@echo "built: target/release/afar"

up: build
	@echo "make up: not yet: there is no client so far, and so nothing to mount." >&2
	@echo "What works: a cell's servers, 'target/release/afar server --help'; see README.md." >&2
	@exit 1

test:
	@scripts/test.sh

nightly:
	FAULT_SEEDS=100000 FAIR_SEEDS=100000 $(RUST) cargo test --release -p rx-proto --test faults --test fairness

lint:
	@scripts/lint.sh

bench:
	@scripts/packages.sh
	$(RUST) cargo run --release -p afar-bench -- $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

clean:
	rm -rf target
