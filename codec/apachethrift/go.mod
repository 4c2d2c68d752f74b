module github.com/yodel-rpc/yodel/codec/apachethrift

go 1.26

require (
	github.com/apache/thrift v0.25.0
	github.com/yodel-rpc/yodel v0.0.0
)
