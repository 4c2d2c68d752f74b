// SPDX-License-Identifier: Apache-2.0

// Command etcd is the etcd server: it cannot be installed with go install, because its own module
// replaces others.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
