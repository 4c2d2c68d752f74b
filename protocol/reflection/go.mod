module github.com/yodel-rpc/yodel/protocol/reflection

go 1.26

require (
	github.com/yodel-rpc/yodel v0.0.0
	google.golang.org/protobuf v1.36.12
)
