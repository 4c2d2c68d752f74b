module github.com/yodel-rpc/yodel/registry/zookeeper

go 1.26

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/yodel-rpc/yodel v0.0.0
)
