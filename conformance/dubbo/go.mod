module github.com/yodel-rpc/yodel/conformance/dubbo

go 1.26.0

require (
	github.com/apache/dubbo-go-hessian2 v1.12.5
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	github.com/yodel-rpc/yodel/registry/zookeeper v0.0.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/dubbogo/gost v1.13.1 // indirect
	github.com/go-zookeeper/zk v1.0.4 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	go.uber.org/atomic v1.9.0 // indirect
)

replace (
	github.com/yodel-rpc/yodel => ../..
	github.com/yodel-rpc/yodel/codec/protobuf => ../../codec/protobuf
	github.com/yodel-rpc/yodel/registry/zookeeper => ../../registry/zookeeper
)
