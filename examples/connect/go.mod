module github.com/yodel-rpc/yodel/examples/connect

go 1.26.0

require (
	connectrpc.com/connect v1.21.0
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	google.golang.org/protobuf v1.36.12
)
