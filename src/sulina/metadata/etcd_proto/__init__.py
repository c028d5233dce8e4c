"""The messages of etcd's API that Sulina uses: `etcd.proto` is ours, `etcd_pb2` is generated from it."""
