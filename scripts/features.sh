#!/bin/bash
# features.sh   prints the options that cargo needs to build all there is: what is off by default since its build needs more than Rust.
#
# etcd needs protoc, and the definitions that come with it. Without them the program is built without etcd, and its tests are skipped.
set -euo pipefail

# Debian has the definitions in another package, which the compiler's only recommends.
has_protoc() {
    local uses_them='syntax = "proto3"; import "google/protobuf/descriptor.proto";'
    protoc --proto_path=/dev --descriptor_set_out=/dev/null /dev/stdin <<< "$uses_them" > /dev/null 2>&1
}

if has_protoc; then
    echo --features afar/etcd
else
    echo "features.sh: there is no protoc that works (Debian's protobuf-compiler, libprotobuf-dev), so etcd is left out" >&2
fi
