module github.com/yodel-rpc/yodel/compress/klauspost

go 1.26

require (
	github.com/klauspost/compress v1.20.3
	github.com/yodel-rpc/yodel v0.0.0
)
