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

// A Process is this process as one in a series that listens on the same sockets. This system does
// not support such a series.
type Process struct{}

// New returns an error, because this system does not support handing sockets over.
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
