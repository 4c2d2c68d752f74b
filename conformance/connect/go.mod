module github.com/yodel-rpc/yodel/conformance/connect

go 1.26

require (
	connectrpc.com/connect v1.21.0
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	github.com/yodel-rpc/yodel/compress/klauspost v0.0.0
	google.golang.org/protobuf v1.36.12
)

require github.com/klauspost/compress v1.20.3 // indirect

replace (
	github.com/yodel-rpc/yodel => ../..
	github.com/yodel-rpc/yodel/codec/protobuf => ../../codec/protobuf
	github.com/yodel-rpc/yodel/compress/klauspost => ../../compress/klauspost
)
