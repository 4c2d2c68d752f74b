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

// variable is the environment variable that describes to a successor what it inherits: a testament,
// as JSON.
const variable = "YODEL_RESTART"

// A testament describes the files that a successor inherits. On the first one, firstFile, the
// successor reports that it is ready; it stays open as long as the successor lives. The predecessor
// closes the second one when the successor may accept connections. The sockets follow.
type testament struct {
	Sockets []bequest `json:"sockets"`
}

// A bequest is a socket that a process hands over.
type bequest struct {
	Wanted string `json:"wanted"` // the address that was passed to Listen
	Addr   string `json:"addr"`   // the address to which the socket is bound
}

// firstFile is the first file after standard input, output and error.
const firstFile = 3

// A legacy is the files that this process inherited from its predecessor. It is nil in the first
// process of a series.
type legacy struct {
	// readiness is the file on which this process reports that it is ready. It stays open until the
	// process has ended, because the predecessor detects the end of the process by it. It is not an
	// os.File, because an os.File may be closed earlier by the garbage collector.
	readiness int
	agreement *os.File // ends when this process may accept connections
	sockets   []inheritance
}

// An inheritance is an inherited socket that is not in use yet.
type inheritance struct {
	bequest
	file *os.File
}

// inherit returns the files that the predecessor left, or nil if there is no predecessor. Processes
// that this process starts later do not inherit them.
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

// take returns a listener on the inherited socket for an address, or nil if there is none.
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

// closeSockets closes the inherited sockets that are not in use.
func (left *legacy) closeSockets() {
	if left == nil {
		return
	}
	for _, in := range left.sockets {
		_ = in.file.Close()
	}
	left.sockets = nil
}

// sayReady reports to the predecessor which sockets this process has taken.
func (left *legacy) sayReady(taken []string) {
	line, err := json.Marshal(taken)
	if err == nil {
		_, _ = syscall.Write(left.readiness, append(line, '\n')) // an error means that the predecessor is gone
	}
}

// awaitAgreement returns when the predecessor agrees or is gone.
func (left *legacy) awaitAgreement() { _, _ = io.Copy(io.Discard, left.agreement) }

// close closes the inherited files when this process does not take over.
func (left *legacy) close() {
	if left == nil {
		return
	}
	left.closeSockets()
	_ = left.agreement.Close()
}
