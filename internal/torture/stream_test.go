// SPDX-License-Identifier: Apache-2.0

package torture_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/introspect"
)

const (
	// clientEnv makes the test binary the client of a server at this address, and caseEnv says what
	// it does.
	clientEnv = "YODEL_TORTURE_CLIENT"
	caseEnv   = "YODEL_TORTURE_CASE"
	// longEnv makes streams wait for 30 seconds instead of 6.
	longEnv = "YODEL_TORTURE_LONG"
)

const (
	slowly yodel.Upload[[]byte, []byte] = "Torture.Slowly" // takes a message each 10 ms
	flood  yodel.Feed[[]byte, []byte]   = "Torture.Flood"  // sends without end
	sleeps yodel.Duplex[[]byte, []byte] = "Torture.Sleeps" // sends without end and takes nothing
	mirror yodel.Duplex[[]byte, []byte] = "Torture.Mirror"
)

const (
	pressed       = 16              // streams at once, and all that the client may open
	pressSize     = 1000            // bytes of a message
	longKeepAlive = 5 * time.Minute // a peer that stops reading is not dead
	littleGarbage = "GOGC=25"       // so that memory that waits to be collected does not look like growth
)

func serveStreams(s *yodel.Server) {
	none := []byte{}
	slowly.Handle(s, func(ctx context.Context, recv yodel.Recv[[]byte]) (*[]byte, error) {
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return &none, nil
	})
	flood.Handle(s, func(_ context.Context, _ *[]byte, send yodel.Send[[]byte]) error { return endlessly(send) })
	sleeps.Handle(s, func(_ context.Context, _ yodel.Recv[[]byte], send yodel.Send[[]byte]) error { return endlessly(send) })
	mirror.Handle(s, func(_ context.Context, recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
		for msg, err := range recv {
			if err != nil {
				return err
			}
			if err := send(msg); err != nil {
				return err
			}
		}
		return nil
	})
}

func endlessly(send yodel.Send[[]byte]) error {
	msg := make([]byte, pressSize)
	for {
		if err := send(&msg); err != nil {
			return err
		}
	}
}

// pressOn is the client's process. It opens its streams and says so, keeps them under pressure
// until it gets a line, ends them, and says whether all of it went as it should, and how many
// messages it has sent.
func pressOn(addr string) {
	valve := &valve{}
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{
		Codec: raw.Codec, Transport: valve, NoWait: true, Limits: yodel.Limits{MaxOpen: pressed, KeepAlive: longKeepAlive},
	})
	p := &press{client: c, opened: make(chan struct{}, pressed), stop: make(chan struct{})}
	stream := map[string]func(ctx context.Context) error{
		"a slow handler": p.upload, "a reader that stops reading": p.feed, "receivers that sleep": p.duplex,
	}[os.Getenv(caseEnv)]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, pressed)
	for range pressed {
		go func() { ended <- stream(ctx) }()
	}
	for n := range pressed {
		select {
		case <-p.opened:
		case err := <-ended:
			fmt.Printf("a stream ended when %d were open: %v\n", n, err)
			return
		}
	}
	if os.Getenv(caseEnv) == "a reader that stops reading" {
		valve.close()
	}
	fmt.Println("open")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // or the parent has gone
	select {
	case err := <-ended:
		fmt.Println("a stream ended:", err)
		return
	default:
	}
	sent := p.sent.Load()
	valve.open()
	close(p.stop)
	cancel()
	for range pressed {
		if err := <-ended; !errors.Is(err, yodel.Canceled) {
			fmt.Println("a stream ended with:", err)
			return
		}
	}
	if err := p.full(); err != nil {
		fmt.Println("afterwards:", err)
		return
	}
	c.Close()
	fmt.Println("sent", sent)
}

// A press is the streams of a client under pressure.
type press struct {
	client *yodel.Client
	opened chan struct{} // a value for each stream
	stop   chan struct{} // closed when they are to end
	sent   atomic.Int64
}

// counted is send, which counts.
func (p *press) counted(send yodel.Send[[]byte]) yodel.Send[[]byte] {
	return func(msg *[]byte) error {
		err := send(msg)
		if err == nil {
			p.sent.Add(1)
		}
		return err
	}
}

func (p *press) upload(ctx context.Context) error {
	_, err := slowly.Call(ctx, p.client, func(send yodel.Send[[]byte]) error {
		p.opened <- struct{}{}
		return endlessly(p.counted(send))
	})
	return err
}

// feed takes a message, and then none until it is to end.
func (p *press) feed(ctx context.Context) error {
	opened := false
	for _, err := range flood.Call(ctx, p.client, &[]byte{}) {
		if err != nil {
			return err
		}
		if !opened {
			opened = true
			p.opened <- struct{}{}
		}
		<-p.stop
	}
	return errors.New("the feed ended")
}

func (p *press) duplex(ctx context.Context) error {
	return sleeps.Call(ctx, p.client, func(_ yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
		p.opened <- struct{}{}
		return endlessly(p.counted(send))
	})
}

// full wants that as many streams as at first can be opened at once, not one more, and that they
// carry much in both directions.
func (p *press) full() error {
	c := p.client
	for end := time.Now().Add(10 * time.Second); c.Endpoints()[0].Inflight() > 0 && time.Now().Before(end); {
		runtime.Gosched()
	}
	big := make([]byte, 1<<20)
	open, release, results := make(chan struct{}, pressed), make(chan struct{}), make(chan error, pressed)
	one := func() error {
		return mirror.Call(context.Background(), c, func(recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
			if err := send(&big); err != nil {
				return err
			}
			got, err := recv.Next()
			if err == nil && len(*got) != len(big) {
				err = fmt.Errorf("got %d bytes", len(*got))
			}
			open <- struct{}{}
			<-release
			return err
		})
	}
	// The final frames of the canceled streams are on their way: until they have come, their slots
	// are taken.
	for end := time.Now().Add(10 * time.Second); ; {
		_, err := inspect.Ping.Do(context.Background(), c, &yodel.Call{Codec: yodel.JSON}, &inspect.Empty{})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	for range pressed {
		go func() {
			err := one()
			for end := time.Now().Add(10 * time.Second); yodel.NotProcessed(err) && time.Now().Before(end); {
				err = one()
			}
			results <- err
		}()
	}
	for range pressed {
		select {
		case <-open:
		case err := <-results:
			return fmt.Errorf("fewer streams than at first: %w", err)
		}
	}
	_, tooMany := inspect.Ping.Do(context.Background(), c, &yodel.Call{Codec: yodel.JSON}, &inspect.Empty{})
	close(release)
	for range pressed {
		if err := <-results; err != nil {
			return err
		}
	}
	if e, ok := errors.AsType[*yodel.Error](tooMany); !ok || e.ID != "YDL1008" {
		return fmt.Errorf("one call too many was made: %w", tooMany)
	}
	return nil
}

// A valve is TCP whose connections stop reading while it is closed.
type valve struct{ closed atomic.Pointer[chan struct{}] }

func (v *valve) close() {
	ch := make(chan struct{})
	v.closed.Store(&ch)
}

func (v *valve) open() {
	if ch := v.closed.Swap(nil); ch != nil {
		close(*ch)
	}
}

func (v *valve) Dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := yodel.TCP.Dial(ctx, addr)
	return &valvedConn{conn, v}, err
}

func (v *valve) Listen(addr string) (net.Listener, error) { return yodel.TCP.Listen(addr) }

type valvedConn struct {
	net.Conn
	v *valve
}

func (c *valvedConn) Read(b []byte) (int, error) {
	if ch := c.v.closed.Load(); ch != nil {
		<-*ch
	}
	return c.Conn.Read(b)
}

// TestStreamsUnderPressure has senders that do not stop, and receivers that are slow, asleep, or
// read nothing at all. The memory of both processes stays where it is, because the senders wait.
// Nothing fails, and afterwards the client may open as many streams as before.
func TestStreamsUnderPressure(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	lasts := 6 * time.Second
	if os.Getenv(longEnv) != "" {
		lasts = 30 * time.Second
	}
	for _, test := range []struct {
		name   string
		method string
		waits  bool // the server sends, and is kept from it
		reads  bool // the server receives, slowly
	}{
		{"a slow handler", string(slowly), false, true},
		{"a reader that stops reading", string(flood), true, false},
		{"receivers that sleep", string(sleeps), true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, littleGarbage)
			stats := func() introspect.MethodStats { return statsOf(t, server.addr, test.method) }
			client := startClient(t, server, test.name)
			client.want(t, "open")
			began := time.Now()
			at := func(d time.Duration) { <-time.After(time.Until(began.Add(d))) }

			at(lasts / 3)
			serverBefore, clientBefore, before := resident(t, server.cmd.Process.Pid), resident(t, client.cmd.Process.Pid), stats()
			at(lasts)
			serverAfter, clientAfter, after := resident(t, server.cmd.Process.Pid), resident(t, client.cmd.Process.Pid), stats()

			t.Logf("resident after %v and %v: server %d KiB, %d KiB; client %d KiB, %d KiB",
				lasts/3, lasts, serverBefore>>10, serverAfter>>10, clientBefore>>10, clientAfter>>10)
			limit := 1.05
			if raceEnabled { // its own memory grows with what happens
				limit = 1.5
			}
			// what a young process of 13 MiB still takes for itself, most when the machine is busy;
			// 16 streams send 10 MB meanwhile
			const late = 2 << 20
			for side, memory := range map[string][2]int{"server": {serverBefore, serverAfter}, "client": {clientBefore, clientAfter}} {
				if float64(memory[1]) > limit*float64(memory[0])+late {
					t.Errorf("the memory of the %s grew from %d to %d bytes", side, memory[0], memory[1])
				}
			}
			if after.Calls != 0 || after.Inflight != pressed {
				t.Errorf("%d streams have ended, %v, and %d are open; want all %d open", after.Calls, after.Errors, after.Inflight, pressed)
			}
			if test.waits && (after.Sent != before.Sent || after.Sent == 0) {
				t.Errorf("the server had sent %d messages and then %d, want that it waits", before.Sent, after.Sent)
			}
			if test.reads && after.Received <= before.Received {
				t.Errorf("the server had received %d messages and then %d, want that it goes on", before.Received, after.Received)
			}
			sent := client.finish(t)
			t.Logf("the server sent %d messages and took %d, the client sent %d", after.Sent, after.Received, sent)
			// What is sent and not taken is within the first window of each stream, and what a
			// connection buffers.
			if onWay := (sent - int(after.Received)) * pressSize; onWay > pressed*64<<10+4<<20 {
				t.Errorf("%d bytes were sent that nobody took", onWay)
			}
			left := stats() // the last replies are counted just after they have gone
			for end := time.Now().Add(10 * time.Second); left.Inflight > 0 && time.Now().Before(end); {
				left = stats()
			}
			if left.Inflight != 0 || left.Calls != pressed {
				t.Errorf("afterwards %d streams are open and %d have ended", left.Inflight, left.Calls)
			}
		})
	}
}

// statsOf asks a server what it counted of a method, on a connection of its own.
func statsOf(t *testing.T, addr, method string) introspect.MethodStats {
	t.Helper()
	c := yodel.Dial(addr)
	defer c.Close()
	stats, err := inspect.Stats.Call(t.Context(), c, &inspect.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(stats.Methods, func(m introspect.MethodStats) bool { return m.Name == method })
	return stats.Methods[i]
}

// A pressing is a client in a process of its own.
type pressing struct {
	cmd    *exec.Cmd
	server *child
	stdin  io.WriteCloser
	lines  *bufio.Scanner
}

func startClient(t *testing.T, server *child, name string) *pressing {
	t.Helper()
	cmd := await.Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), clientEnv+"="+server.addr, caseEnv+"="+name, littleGarbage)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // the error is that it was killed
	})
	return &pressing{cmd, server, stdin, bufio.NewScanner(stdout)}
}

// want reads a line that begins so, and returns what follows.
func (p *pressing) want(t *testing.T, prefix string) string {
	t.Helper()
	line, err := await.Line(p.lines, fmt.Sprintf("%q of the client", prefix), p.cmd.Process, p.server.cmd.Process)
	if err != nil {
		t.Fatal(err)
	}
	rest, ok := strings.CutPrefix(line, prefix)
	if !ok {
		t.Fatalf("the client said %q, want %q", line, prefix)
	}
	return rest
}

// finish has the client end its streams, and returns how many messages it had sent.
func (p *pressing) finish(t *testing.T) (sent int) {
	t.Helper()
	_, _ = io.WriteString(p.stdin, "\n") // if it has gone, it says nothing any more
	if _, err := fmt.Sscan(p.want(t, "sent "), &sent); err != nil {
		t.Fatal(err)
	}
	return sent
}
