module github.com/yodel-rpc/yodel/bench/peers/yodel-wires

go 1.26

require (
	github.com/planetscale/vtprotobuf v0.6.0
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/bench/message v0.0.0
	github.com/yodel-rpc/yodel/bench/peer v0.0.0
	github.com/yodel-rpc/yodel/bench/peers/thrift v0.0.0
	github.com/yodel-rpc/yodel/codec/protobuf v0.0.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	github.com/apache/thrift v0.25.0 // indirect
	golang.org/x/sys v0.38.0 // indirect
)

replace (
	github.com/yodel-rpc/yodel => ../../..
	github.com/yodel-rpc/yodel/bench/message => ../../message
	github.com/yodel-rpc/yodel/bench/peer => ../../peer
	github.com/yodel-rpc/yodel/bench/peers/thrift => ../thrift
	github.com/yodel-rpc/yodel/codec/protobuf => ../../../codec/protobuf
)
