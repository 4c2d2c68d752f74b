module github.com/yodel-rpc/yodel/bench/peer

go 1.26

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0
	golang.org/x/sys v0.38.0
)
