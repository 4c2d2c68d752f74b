module github.com/yodel-rpc/yodel/bench/peers/drpc

go 1.26

require (
	github.com/planetscale/vtprotobuf v0.6.0
	github.com/yodel-rpc/yodel/bench/message v0.0.0
	github.com/yodel-rpc/yodel/bench/peer v0.0.0
	google.golang.org/protobuf v1.36.12
	storj.io/drpc v1.0.0
)

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	github.com/zeebo/errs v1.2.2 // indirect
	golang.org/x/sys v0.38.0 // indirect
)

replace (
	github.com/yodel-rpc/yodel/bench/message => ../../message
	github.com/yodel-rpc/yodel/bench/peer => ../../peer
)
