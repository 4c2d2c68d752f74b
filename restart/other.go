// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package restart

import (
	"context"
	"fmt"
	"runtime"
	"syscall"

	"github.com/yodel-rpc/yodel"
)

const hangUp = syscall.SIGHUP

// A Process is this process as one in a row of them that listen on the same sockets. There is none
// on this system.
type Process struct{}

// New returns an error: no process can hand its sockets over on this system.
func New(o *Options) (*Process, error) {
	_ = o.withDefaults()
	return nil, unsupported()
}

func unsupported() error {
	return fmt.Errorf("restart: on %s a process cannot hand its sockets over; start a new process beside it", runtime.GOOS)
}

// Transport returns over.
func (*Process) Transport(over yodel.Transport) yodel.Transport { return over }

// Run returns an error.
func (*Process) Run(context.Context, ...func(context.Context) error) error { return unsupported() }
