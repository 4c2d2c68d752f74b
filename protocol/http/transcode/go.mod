module github.com/yodel-rpc/yodel/protocol/http/transcode

go 1.26

require (
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	google.golang.org/genproto/googleapis/api v0.0.0-20260803160001-6ac0973c030d
	google.golang.org/protobuf v1.36.12
)
