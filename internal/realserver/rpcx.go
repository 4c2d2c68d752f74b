// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"
)

// RPCX starts an rpcx server with the service Arith. Rpcx's own plug-in registers the service, with
// metadata, in the registry at the address registry. Kind is the kind of the registry: "etcd",
// "zookeeper", "redis" or "consul".
func RPCX(t testing.TB, kind, registry, base, metadata string) *Server {
	t.Helper()
	return Start(t, Program{
		Name:    "rpcx",
		Install: installRPCX,
		Find:    builtRPCX,
		Command: func(found, addr, _ string) (*exec.Cmd, error) {
			return exec.Command(found, "-registry", kind, "-at", registry, "-base", base, "-listen", addr, "-metadata", metadata), nil
		},
		Probe: listens,
	})
}

const installRPCX = "nothing: Go builds it, and needs its modules for that"

func builtRPCX() (string, error) { return Built("rpcx", ".") }

// FoundByRPCX returns the servers of a service that rpcx's own discovery finds: a line for each
// server, with its key and its metadata. It does not support Consul, because rpcx would find no
// records of yodel there.
func FoundByRPCX(ctx context.Context, kind, registry, base, service string) (string, error) {
	program, err := builtRPCX()
	if err != nil {
		return "", err
	}
	found, err := exec.CommandContext(ctx, program, "-registry", kind, "-at", registry, "-base", base, "-find", service).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return string(found), err
}
