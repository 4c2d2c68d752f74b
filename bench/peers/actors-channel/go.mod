module github.com/yodel-rpc/yodel/bench/peers/actors-channel

go 1.26

require github.com/yodel-rpc/yodel/bench/peer v0.0.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	golang.org/x/sys v0.38.0 // indirect
)

replace github.com/yodel-rpc/yodel/bench/peer => ../../peer
