// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// An alarm sleeps to within some ten microseconds. The runtime's timers are as good while it is
// busy, but an idle runtime sleeps in epoll_wait, which counts in milliseconds. A timer that is a
// file wakes it as a reply from the network does.
type alarm struct {
	fd   int
	file *os.File
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd_create: %w", err)
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "alarm")}, nil
}

func (a *alarm) sleep(d time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	var expirations [8]byte
	if err := unix.TimerfdSettime(a.fd, 0, &spec, nil); err != nil {
		panic(fmt.Sprintf("timerfd_settime: %v", err)) // only a wrong argument can be the reason
	}
	if _, err := a.file.Read(expirations[:]); err != nil {
		panic(fmt.Sprintf("read a timerfd: %v", err))
	}
}
