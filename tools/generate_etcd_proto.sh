#!/bin/sh
# Makes src/sulina/metadata/etcd_proto/etcd_pb2.py and .pyi from etcd.proto, with tools that the project does not install
# otherwise. This version of them makes code that runs with protobuf 5, 6 and 7.
set -eu

cd "$(dirname "$0")/.."
proto=sulina/metadata/etcd_proto
.venv/bin/uv run --quiet --no-project --python 3.11 --with grpcio-tools==1.66.2 --with "setuptools<81" \
    python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src "src/$proto/etcd.proto"
for made in "src/$proto/etcd_pb2.py" "src/$proto/etcd_pb2.pyi"; do
    {
        echo '"""Generated from etcd.proto by tools/generate_etcd_proto.sh. Do not edit."""'
        echo
        cat "$made"
    } >"$made.aside"
    mv "$made.aside" "$made"
done
