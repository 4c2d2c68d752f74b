module github.com/yodel-rpc/yodel/examples/grpc

go 1.26.0

require (
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	github.com/yodel-rpc/yodel/protocol/grpcgo v0.0.0
	github.com/yodel-rpc/yodel/protocol/reflection v0.0.0
	google.golang.org/grpc v1.83.2
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260803160001-6ac0973c030d // indirect
)
