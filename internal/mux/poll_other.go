// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package mux

import (
	"net"
	"time"
)

// A poller exists on unix only.
type poller struct{}

func newPoller(net.Conn) *poller { return nil }

func (*poller) read([]byte, time.Duration) (int, error) { panic("mux: no poller on this system") }

func (*poller) nap([]byte) (int, error) { panic("mux: no poller on this system") }
