module github.com/yodel-rpc/yodel/codec/msgpack/internal/testmsgp

go 1.26

require (
	github.com/tinylib/msgp v1.6.5
	github.com/yodel-rpc/yodel v0.0.0
	github.com/yodel-rpc/yodel/codec/msgpack v0.0.0
)

require (
	github.com/philhofer/fwd v1.2.0 // indirect
	github.com/vmihailenco/msgpack/v5 v5.4.1 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
)
