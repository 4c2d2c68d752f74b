module github.com/yodel-rpc/yodel/conformance/gateway

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.33.0
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	github.com/yodel-rpc/yodel/protocol/grpcgo v0.0.0-00010101000000-000000000000
	github.com/yodel-rpc/yodel/protocol/http/transcode v0.0.0-00010101000000-000000000000
	google.golang.org/genproto/googleapis/api v0.0.0-20261026165753-2ffab32bce7e
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261019180522-ce908d29299b
	google.golang.org/grpc v1.84.0
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace (
	github.com/yodel-rpc/yodel => ../..
	github.com/yodel-rpc/yodel/codec/protobuf => ../../codec/protobuf
	github.com/yodel-rpc/yodel/protocol/grpcgo => ../../protocol/grpcgo
	github.com/yodel-rpc/yodel/protocol/http/transcode => ../../protocol/http/transcode
)
