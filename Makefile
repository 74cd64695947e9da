# Each target finds a Rust that is new enough, or installs Debian's (scripts/rust.sh).
#
#   make            the program, target/release/afar
#   make test       what is tested before a commit, from nothing: packages, build, the tests of afar alone, short fuzzing, lint;
#                   ALL=1 adds what CI tests: OpenAFS's programs, stock kernels, the Debian packages
#   make nightly    the simulations from many more seeds, fsx and mounts for longer, a file of 10 GiB, afar-backup's package and repositories elsewhere, the README in a fresh Debian: some hours, and 25 GB of disk
#   make lint       rustfmt, clippy, documentation, dependencies' licences, the repository's own rules
#   make bench      the experiments; QUICK=1 makes them short, and fewer, ARGS="..." is passed on (names of experiments, --only, --repeats)
#   make backup     the program that backs up volumes, backup/target/release/afar-backup, and its Debian package (docs/backup.md)
#   make deb        Debian packages of tools, servers and client, into target/debian
#   make up         a whole cell on this machine, mounted; ARGS="--mount DIR ..." is passed on (docs/client.md)
#   make clean      removes what was built

RUST := scripts/rust.sh

.PHONY: build backup up test nightly lint bench deb clean

build:
	$(RUST) cargo build --release --package afar --bins
	@scripts/debuginfo.sh target/release/afar
	@echo "built: target/release/afar"

backup:
	$(RUST) cargo build --release --locked --manifest-path backup/Cargo.toml --features remote
	@scripts/debuginfo.sh backup/target/release/afar-backup
	@scripts/cargo-tool.sh cargo-deb@3.8.0 --no-default-features --features gzip
	PATH=$$PWD/target/tools/bin:$$PATH $(RUST) cargo deb --no-build --manifest-path backup/Cargo.toml --output target/debian/
	@echo "built: backup/target/release/afar-backup"

# The program itself, so that Ctrl-C reaches it once and its exit status is make's.
up: build
	@scripts/packages.sh fuse3
	@exec target/release/afar up $(ARGS)

test:
	@scripts/test.sh $(if $(filter-out 0,$(ALL)),--all)

nightly:
	FAULT_SEEDS=100000 FAIR_SEEDS=100000 AFAR_NARROW_SEEDS=100000 $(RUST) cargo test --release -p rx-proto --test rx_proto_tests -- faults:: fairness:: narrow::
	@scripts/packages.sh
	@scripts/tools.sh
	$(RUST) cargo build --release -p afar
	AFAR_FSX_OPERATIONS=100000 AFAR_SEED=$$(date +%s) $(RUST) cargo test --release -p afar --test afar_tests posix::random_operations
	AFAR_CELL_SEEDS=3000 $(RUST) cargo test --release -p afs-client --test afs_client_tests whole_cell::
	AFAR_SIM_RXGK=1 $(RUST) cargo test --release -p afs-client --test afs_client_tests
	AFAR_NAMES_SEEDS=200 $(RUST) cargo test --release -p afs-client --test afs_client_tests names_random::
	AFAR_NAMES_SEEDS=40 $(RUST) cargo test --release -p afs-client --test afs_client_tests names_two::
	AFAR_CUTS=500 $(RUST) cargo test --release -p afs-client --test afs_client_tests power_cuts::
	AFAR_IS_BUILT=1 AFAR_FSX_OPERATIONS=100000 AFAR_SEED=$$(date +%s) $(RUST) cargo test --release -p afar-interop --test cells programs/fsx
	AFAR_LARGE_BYTES=10737418240 $(RUST) cargo test --release -p afar --test afar_tests work::a_file_of_a_gibibyte
	AFAR_IS_BUILT=1 AFAR_LARGE_BYTES=10737418240 $(RUST) cargo test --release -p afar-interop --test cells programs/a_large_file
	AFAR_REFERENCE_RUNS=20000 AFAR_SEED=$$(date +%s) $(RUST) cargo test --release -p afs-fuse --test afs_fuse_tests reference::
	AFAR_ROUNDS=10000 $(RUST) cargo test --release -p afar --test afar_tests rounds::
	AFAR_MEMORY_ROUNDS=500 $(RUST) cargo test --release -p afar --test afar_tests memory::work_that
	AFAR_TURNS=10 $(RUST) cargo test --release -p afar --test afar_tests -- together:: work::what_one_mount_writes
	AFAR_KILLS=500 AFAR_SEED=$$(date +%s) $(RUST) cargo test --release -p afar --test afar_tests -- motion_killed:: --nocapture
	AFAR_RESUMED_FILES=176 $(RUST) cargo test --release -p afar --test afar_tests motion_resumed::
	$(RUST) cargo clippy --locked --manifest-path backup/Cargo.toml --all-targets --features remote -- -D warnings
	@scripts/packages.sh sshfs curl
	@scripts/tools.sh --s3
	AFAR_KILLS=100 $(RUST) cargo test --release --locked --manifest-path backup/Cargo.toml --features remote -- --nocapture
	$(MAKE) deb backup
	packaging/run target/debian
	scripts/mutants.sh
	scripts/kernels.sh --openafs
	AFAR_IS_BUILT=1 AFAR_OPENAFS_MODULE=1 $(RUST) cargo test --release -p afar-interop --test cells kernels/openafs
	scripts/kernels.sh --rxgk
	AFAR_IS_BUILT=1 AFAR_RXGK_KERNEL=1 $(RUST) cargo test --release -p afar-interop --test cells kernels/kafs_with_rxgk
	AFAR_IS_BUILT=1 AFAR_MOVES=10 $(RUST) cargo test --release -p afar-interop --test cells moving/
	AFAR_IS_BUILT=1 AFAR_UBIK=1 $(RUST) cargo test --release -p afar-interop --test cells migration/two
	AFAR_RANDOM_SECONDS=7200 $(RUST) cargo test --release -p afar --test afar_tests random_files::
	AFAR_KILLS=500 $(RUST) cargo test --release -p afar --test afar_tests -- killed:: --skip motion_killed
	AFAR_BUILD_SECONDS=3600 $(RUST) cargo test --release -p afar --test afar_tests token_ends::
	AFAR_KEPT_OPEN_SECONDS=7200 AFAR_SEED=$$(date +%s) $(RUST) cargo test --release -p afar --test afar_tests kept_open::
	AFAR_POWER_SEEDS=500 $(RUST) cargo test --release -p afs-celldb power
	AFAR_ETCD_SECONDS=600 AFAR_SEED=$$(date +%s) $(RUST) cargo test --release -p afar --features etcd --test afar_tests -- etcd_faults:: etcd_history:: --nocapture
	AFAR_FLIPS=2000 $(RUST) cargo test --release -p afs-store -p afs-volume -p afs-cache -p afs-celldb -- flips:: flipped_bit
	AFAR_FLIPS=50 $(RUST) cargo test --release -p afs-volume --test afs_volume_tests a_bit_that_flips
	AFAR_SNAPSHOT_KILLS=30000 $(RUST) cargo test --release -p afs-volume --lib killed::
	AFAR_KILLS=300 $(RUST) cargo test --release -p afs-volume --test afs_volume_tests kill_9
	@scripts/fresh-debian.sh

lint:
	@scripts/lint.sh

deb:
	@scripts/packages.sh dpkg-dev protobuf-compiler libprotobuf-dev
	@scripts/deb.sh

bench:
	@scripts/packages.sh
	@scripts/packages.sh git-annex nftables nginx apache2-bin apache2-utils
	$(RUST) cargo run --release -p afar-bench -- $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

clean:
	rm -rf target backup/target
