module github.com/yodel-rpc/yodel

go 1.26
