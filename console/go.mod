module github.com/yodel-rpc/yodel/console

go 1.26.0

require github.com/yodel-rpc/yodel v0.0.0
