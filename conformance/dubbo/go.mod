module github.com/yodel-rpc/yodel/conformance/dubbo

go 1.26.0

require (
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	github.com/yodel-rpc/yodel/registry/zookeeper v0.0.0
	google.golang.org/protobuf v1.36.12
)

require github.com/go-zookeeper/zk v1.0.4 // indirect

replace (
	github.com/yodel-rpc/yodel => ../..
	github.com/yodel-rpc/yodel/codec/protobuf => ../../codec/protobuf
	github.com/yodel-rpc/yodel/registry/zookeeper => ../../registry/zookeeper
)
