// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
)

// variable tells a successor what it inherits: a testament, as JSON.
const variable = "YODEL_RESTART"

// A testament describes the files that a successor inherits: firstFile is where it says that it is
// ready, and what it keeps open as long as it lives; the next one ends when it may accept
// connections; the sockets follow.
type testament struct {
	Sockets []bequest `json:"sockets"`
}

// A bequest is a socket that is handed over.
type bequest struct {
	Wanted string `json:"wanted"` // the address as it was asked for
	Addr   string `json:"addr"`   // the address that it is bound to
}

// firstFile is the first one behind standard input, output and error.
const firstFile = 3

// A legacy is what this process was left by its predecessor. A nil one is that of the first process
// in a row.
type legacy struct {
	// readiness is where this process says that it is ready. It stays open until the process has
	// ended, whatever becomes of this value, because that is how the predecessor knows: so it is no
	// os.File.
	readiness int
	agreement *os.File // ends when connections may be accepted
	sockets   []inheritance
}

// An inheritance is a socket that has not been taken yet.
type inheritance struct {
	bequest
	file *os.File
}

// inherit takes what the predecessor left, if there is one. What this process starts from then on
// inherits none of it.
func inherit() (*legacy, error) {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return nil, nil //nolint:nilnil // most processes inherit nothing, see legacy
	}
	fail := func(err error) (*legacy, error) {
		return nil, fmt.Errorf("restart: what %s says was inherited cannot be used (%q): %w", variable, text, err)
	}
	if err := os.Unsetenv(variable); err != nil {
		return fail(err)
	}
	var t testament
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return fail(err)
	}
	syscall.CloseOnExec(firstFile)
	left := &legacy{readiness: firstFile}
	var files []*os.File
	for fd := firstFile + 1; fd < firstFile+2+len(t.Sockets); fd++ {
		syscall.CloseOnExec(fd)
		if err := syscall.SetNonblock(fd, true); err != nil { // otherwise closing it would not end a read
			return fail(fmt.Errorf("file %d: %w", fd, err))
		}
		files = append(files, os.NewFile(uintptr(fd), fmt.Sprintf("inherited file %d", fd)))
	}
	left.agreement = files[0]
	for i, b := range t.Sockets {
		left.sockets = append(left.sockets, inheritance{b, files[1+i]})
	}
	return left, nil
}

// take returns a listener on the socket for an address, or nil if there is none.
func (left *legacy) take(wanted string) (net.Listener, error) {
	if left == nil {
		return nil, nil //nolint:nilnil // see above
	}
	i := slices.IndexFunc(left.sockets, func(in inheritance) bool { return in.Wanted == wanted })
	if i < 0 {
		return nil, nil //nolint:nilnil // see above
	}
	in := left.sockets[i]
	left.sockets = slices.Delete(left.sockets, i, i+1)
	defer in.file.Close()
	l, err := net.FileListener(in.file)
	if err != nil {
		return nil, err
	}
	if got := l.Addr().String(); got != in.Addr {
		_ = l.Close()
		return nil, fmt.Errorf("it is bound to %s and not to %s", got, in.Addr)
	}
	return l, nil
}

// closeSockets closes those that were not taken.
func (left *legacy) closeSockets() {
	if left == nil {
		return
	}
	for _, in := range left.sockets {
		_ = in.file.Close()
	}
	left.sockets = nil
}

// sayReady tells the predecessor which sockets it can leave to this process.
func (left *legacy) sayReady(taken []string) {
	line, err := json.Marshal(taken)
	if err == nil {
		_, _ = syscall.Write(left.readiness, append(line, '\n')) // a predecessor that is gone cannot object
	}
}

// awaitAgreement returns when the predecessor agrees or is gone.
func (left *legacy) awaitAgreement() { _, _ = io.Copy(io.Discard, left.agreement) }

// close lets go of what was left: this process does not take over.
func (left *legacy) close() {
	if left == nil {
		return
	}
	left.closeSockets()
	_ = left.agreement.Close()
}
