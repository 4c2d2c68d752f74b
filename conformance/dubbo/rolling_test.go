// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/conformance/rolling"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
)

const rollingWork yodel.Method[int64, string] = "com.acme.Work.do"

// serveRolling returns a server whose method answers with the answer to the call.
func serveRolling(o *yodel.ServerOptions, execute rolling.Execute) (*yodel.Server, error) {
	o.Codecs = []yodel.Codec{hessian2.Codec}
	o.Protocols = []yodel.Protocol{dubbo.Protocol}
	s := yodel.NewServer(o)
	rollingWork.Handle(s, func(_ context.Context, id *int64) (*string, error) { return new(execute(*id)), nil })
	return s, nil
}

// callers is a program that makes calls with dubbo-go.
type callers struct {
	ready chan struct{} // closed when it has connected to the servers
	ended chan struct{} // closed at its end

	mu    sync.Mutex
	to    io.Writer
	calls map[int64]chan string // by ID; each has place for an answer
}

// startCallers starts the program. It ends with the test.
func startCallers(t testing.TB, addrs []string) *callers {
	t.Helper()
	cmd := exec.Command(realserver.Tool(t, "dubbogo", "."), "caller", strings.Join(addrs, ",")) //nolint:gosec // it was built from here
	realserver.EndWithParent(cmd)
	cmd.Dir = t.TempDir() // for the files that dubbo-go writes
	to, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &callers{ready: make(chan struct{}), ended: make(chan struct{}), to: to, calls: make(map[int64]chan string)}
	go func() {
		defer close(c.ended)
		c.read(from)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-c.ended
	})
	return c
}

// read passes the answers on.
func (c *callers) read(from io.Reader) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		number, answer, _ := strings.Cut(lines.Text(), " ")
		if number == "ready" {
			close(c.ready)
			continue
		}
		id, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			continue // dubbo-go writes its own lines
		}
		c.mu.Lock()
		if to := c.calls[id]; to != nil {
			to <- answer
			delete(c.calls, id)
		}
		c.mu.Unlock()
	}
}

// call makes a call.
func (c *callers) call(ctx context.Context, id int64) (string, error) {
	answered := make(chan string, 1)
	c.mu.Lock()
	c.calls[id] = answered
	_, err := fmt.Fprintln(c.to, id)
	c.mu.Unlock()
	if err != nil {
		return "", err
	}
	select {
	case answer := <-answered:
		if text, failed := strings.CutPrefix(answer, "error: "); failed {
			return "", errors.New(text)
		}
		return answer, nil
	case <-c.ended:
		return "", errors.New("the program has ended")
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// rollingPlan has clients of dubbo-go that repeat no call. They choose a session that has ended
// until they have connected again, and fail with "session Already Closed".
func rollingPlan(t *testing.T) rolling.Plan {
	realserver.Tool(t, "dubbogo", ".") // or the test is skipped, before it starts servers
	var shared *callers
	return rolling.Plan{Kind: "dubbo", Lingers: true, Dial: func(t testing.TB, addrs []string, caller int) rolling.Call {
		if caller == 0 {
			shared = startCallers(t, addrs)
			select {
			case <-shared.ready:
			case <-shared.ended:
				t.Fatal("dubbo-go did not connect to the servers")
			}
		}
		return shared.call
	}}
}

// What servers have executed for unchanged clients of dubbo-go has its reply while the servers are
// replaced one after the other.
func TestRollingRestarts(t *testing.T) {
	t.Attr("rerun", "never")
	rolling.Run(t, rollingPlan(t))
}

// Servers that do not drain lose calls, and the test notices it.
func TestRollingRestartsWithoutADrain(t *testing.T) {
	t.Attr("rerun", "never")
	rolling.Control(t, rollingPlan(t))
}
