// SPDX-License-Identifier: Apache-2.0

// Command kube-apiserver is the API server of Kubernetes. It has a module of its own because that
// of Kubernetes replaces parts of itself by folders, and so cannot be installed by its name.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
