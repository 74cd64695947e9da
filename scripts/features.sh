#!/bin/bash
# features.sh   prints the options that cargo needs to build all there is: what is off by default since its build needs more than Rust.
#
# etcd needs protoc. Without it the program is built without etcd, and its tests are skipped.
set -euo pipefail

if command -v protoc > /dev/null; then
    echo --features afar/etcd
else
    echo "features.sh: there is no protoc (Debian's protobuf-compiler), so etcd is left out" >&2
fi
