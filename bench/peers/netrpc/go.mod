module github.com/yodel-rpc/yodel/bench/peers/netrpc

go 1.26

require (
	github.com/vmihailenco/msgpack/v5 v5.4.1
	github.com/yodel-rpc/yodel/bench/peer v0.0.0
)

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	golang.org/x/sys v0.38.0 // indirect
)

replace github.com/yodel-rpc/yodel/bench/peer => ../../peer
