module github.com/yodel-rpc/yodel/codec/protobuf/internal/testvt

go 1.26

require (
	github.com/planetscale/vtprotobuf v0.6.1-0.20240319094008-0393e58bdf10
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	google.golang.org/protobuf v1.36.12
)
