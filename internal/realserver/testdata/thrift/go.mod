module github.com/yodel-rpc/yodel/internal/realserver/testdata/thrift

go 1.26.0

require github.com/apache/thrift v0.25.0
