// SPDX-License-Identifier: Apache-2.0

package socket

import "github.com/yodel-rpc/yodel/internal/monotime"

// Naps are those of a goroutine that reads a connection. Where one call after another comes, its
// thread waits in the system call ppoll for the next one before the goroutine sleeps in the Go
// scheduler: see Polling. Call Init first.
type Naps struct {
	Polling
	began int64
}

// nappers counts the threads of the process that nap.
var nappers Pollers

// Init makes n ready.
func (n *Naps) Init() {
	n.Polling.Init()
	nappers.SetProcessors()
}

// Read begins to wait for data. It reads into buf if data comes while the thread naps, and returns
// 0 and no error when the caller should sleep. Alone says that no call is open on the connection:
// otherwise the thread does not nap. The caller calls Woke when it has data.
func (n *Naps) Read(from Conn, alone bool, buf []byte) (int, error) {
	n.began = int64(monotime.Now())
	if !alone || !from.Exists() {
		n.Quick = 0
		return 0, nil
	}
	n.Quick++
	return n.Poll(&nappers, from, n.began, 0, buf)
}

// Woke records that data has come.
func (n *Naps) Woke() { n.Waited(int64(monotime.Now())-n.began, 0) }
