module github.com/yodel-rpc/yodel/codec/msgpack

go 1.26

require (
	github.com/vmihailenco/msgpack/v5 v5.4.1
	github.com/yodel-rpc/yodel v0.0.0
)

require github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
