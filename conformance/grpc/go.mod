module github.com/yodel-rpc/yodel/conformance/grpc

go 1.26.0

require (
	cloud.google.com/go/kms v1.37.0
	cloud.google.com/go/longrunning v1.5.0
	cloud.google.com/go/pubsub/v2 v2.9.0
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	github.com/yodel-rpc/yodel/protocol/grpcgo v0.0.0
	github.com/yodel-rpc/yodel/protocol/http/transcode v0.0.0
	github.com/yodel-rpc/yodel/protocol/reflection v0.0.0
	golang.org/x/net v0.61.0
	google.golang.org/genproto/googleapis/api v0.0.0-20261012220534-4341edf3f941
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261012220534-4341edf3f941
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	cloud.google.com/go/compute/metadata v0.10.0 // indirect
	github.com/cncf/xds/go v0.0.0-20260202195803-dba9d589def2 // indirect
	github.com/envoyproxy/protoc-gen-validate v1.3.3 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace (
	github.com/yodel-rpc/yodel => ../..
	github.com/yodel-rpc/yodel/codec/protobuf => ../../codec/protobuf
	github.com/yodel-rpc/yodel/protocol/grpcgo => ../../protocol/grpcgo
	github.com/yodel-rpc/yodel/protocol/http/transcode => ../../protocol/http/transcode
	github.com/yodel-rpc/yodel/protocol/reflection => ../../protocol/reflection
)
