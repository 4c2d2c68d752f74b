// SPDX-License-Identifier: Apache-2.0

// Package dubbo tests protocol/dubbo, codec/hessian2 and the registries of Dubbo with dubbo-java
// and dubbo-go: their consumers find a yodel server in ZooKeeper and call it, and a yodel client
// finds their providers there and calls them. It is a module of its own, so that the root needs
// nothing but the standard library. Run it with
//
//	YODEL_REAL=1 GOWORK=off go test ./...
package dubbo
