// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

// A page reads the body of a request and replies with a page.
type page struct{}

func (page) Head(*Stream) Plan { return Plan{} }

func (page) Serve(s *Stream) {
	if _, err := io.Copy(io.Discard, s); err == nil {
		_ = s.Reply([]Field{{Name: ":status", Value: "200"}}, []byte("a page"), nil)
	}
}

// The engine passes all strict tests of h2spec but two: RFC 9113 has removed the priorities of RFC
// 7540, so a stream may depend on itself.
func TestH2spec(t *testing.T) {
	const want = "147 tests, 145 passed, 0 skipped, 2 failed"
	tool := realserver.Tool(t, "h2spec", "github.com/summerwind/h2spec/cmd/h2spec")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { New(nc, Config{Handler: page{}}).Serve(nil, func(error) {}) })
		}
	})
	defer serving.Wait()
	defer l.Close()
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tool, "--strict", "--host", host, "--port", port, "--timeout", "2")
	realserver.EndWithParent(cmd)
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), want) || !strings.Contains(string(out), "Sends PRIORITY frame that depend on itself") {
		t.Errorf("want %s:\n%s", want, out)
	}
}
