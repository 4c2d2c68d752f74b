module github.com/yodel-rpc/yodel/registry/mdns

go 1.26.0

require (
	github.com/miekg/dns v1.1.73
	github.com/yodel-rpc/yodel v0.0.0
	golang.org/x/net v0.61.0
)

require golang.org/x/sys v0.49.0 // indirect
