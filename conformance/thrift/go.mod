module github.com/yodel-rpc/yodel/conformance/thrift

go 1.26.0

require (
	github.com/apache/thrift v0.25.0
	github.com/beltran/gohive v1.8.1
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/apachethrift v0.0.0
)

replace github.com/yodel-rpc/yodel => ../..

replace github.com/yodel-rpc/yodel/codec/apachethrift => ../../codec/apachethrift
