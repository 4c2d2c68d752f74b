// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gencode"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/inspect"
)

// The methods of the benchmarks: a feed of as many messages as the request's number says, an upload
// that counts, an echo, and a feed of raw bytes: the request is a number of 8 bytes, and the
// message to send.
const (
	tickFeed   yodel.Feed[tagged, tagged]   = "Bench.Feed"
	tickUpload yodel.Upload[tagged, tagged] = "Bench.Upload"
	tickEcho   yodel.Duplex[tagged, tagged] = "Bench.Echo"
	rawFeed    yodel.Feed[[]byte, []byte]   = "Bench.RawFeed"
)

// ticks serves them, and returns a client.
func ticks(t testing.TB) *yodel.Client {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{gencode.Codec}})
	tickFeed.Handle(s, func(_ context.Context, in *tagged, send yodel.Send[tagged]) error {
		tick := tagged{Text: in.Text}
		for tick.Number = range in.Number {
			if err := send(&tick); err != nil {
				return err
			}
		}
		return nil
	})
	tickUpload.Handle(s, func(_ context.Context, recv yodel.Recv[tagged]) (*tagged, error) {
		out := new(tagged)
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
			out.Number++
		}
		return out, nil
	})
	tickEcho.Handle(s, func(_ context.Context, recv yodel.Recv[tagged], send yodel.Send[tagged]) error {
		for tick, err := range recv {
			if err != nil {
				return err
			}
			if err := send(tick); err != nil {
				return err
			}
		}
		return nil
	})
	rawFeed.Handle(s, func(_ context.Context, in *[]byte, send yodel.Send[[]byte]) error {
		msg := (*in)[8:]
		for range binary.LittleEndian.Uint64(*in) {
			if err := send(&msg); err != nil {
				return err
			}
		}
		return nil
	})
	return connect(t, s, &yodel.ClientOptions{Codec: gencode.Codec})
}

// runFeed receives n messages on one stream, runUpload sends them, and runEcho sends each one when
// the one before has come back.
func runFeed(t testing.TB, c *yodel.Client, n int) {
	t.Helper()
	next := uint64(0)
	for tick, err := range tickFeed.Call(t.Context(), c, &tagged{Number: uint64(n)}) {
		if err != nil || tick.Number != next {
			t.Fatal(err, next)
		}
		next++
	}
}

func runUpload(t testing.TB, c *yodel.Client, n int) {
	t.Helper()
	got, err := tickUpload.Call(t.Context(), c, func(send yodel.Send[tagged]) error {
		tick := tagged{}
		for tick.Number = range uint64(n) {
			if err := send(&tick); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || got.Number != uint64(n) {
		t.Fatal(got, err)
	}
}

func runEcho(t testing.TB, c *yodel.Client, n int) {
	t.Helper()
	err := tickEcho.Call(t.Context(), c, func(recv yodel.Recv[tagged], send yodel.Send[tagged]) error {
		tick := tagged{}
		for tick.Number = range uint64(n) {
			if err := send(&tick); err != nil {
				return err
			}
			if back, err := recv.Next(); err != nil || back.Number != tick.Number {
				t.Fatal(back, err)
			}
		}
		return nil
	})
	must(t, err)
}

// runRaw receives n raw messages of 128 bytes on streams of at most 10,000, as the suite in bench/
// does, and runRawReuse does so without keeping any.
func runRaw(t testing.TB, c *yodel.Client, n int) { t.Helper(); receiveRaw(t, c, n, false) }

func runRawReuse(t testing.TB, c *yodel.Client, n int) { t.Helper(); receiveRaw(t, c, n, true) }

func receiveRaw(t testing.TB, c *yodel.Client, n int, reuse bool) {
	t.Helper()
	for n > 0 {
		some := min(n, 10_000)
		n -= some
		request := append(binary.LittleEndian.AppendUint64(nil, uint64(some)), make([]byte, 128)...)
		recv := rawFeed.Do(t.Context(), c, &yodel.Call{Codec: raw.Codec}, &request)
		if reuse {
			recv = recv.Reuse()
		}
		for msg, err := range recv {
			if err != nil || len(*msg) != 128 {
				t.Fatal(msg, err)
			}
			some--
		}
		if some != 0 {
			t.Fatalf("%d messages are missing", some)
		}
	}
}

// The messages of the benchmarks have 8 bytes, and raw ones 128. An operation is a message, and in
// Echo one there and one back.
func BenchmarkStreamFeed(b *testing.B) { benchmarkStream(b, runFeed) }

func BenchmarkStreamUpload(b *testing.B) { benchmarkStream(b, runUpload) }

func BenchmarkStreamEcho(b *testing.B) { benchmarkStream(b, runEcho) }

func BenchmarkStreamRaw(b *testing.B) { benchmarkStream(b, runRaw) }

func BenchmarkStreamRawReuse(b *testing.B) { benchmarkStream(b, runRawReuse) }

func benchmarkStream(b *testing.B, run func(testing.TB, *yodel.Client, int)) {
	b.Helper()
	c := ticks(b)
	run(b, c, 100)
	b.ReportAllocs()
	b.ResetTimer()
	run(b, c, b.N)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// A message of a stream allocates what its receiver gets, and nothing else, on both sides together.
// What a stream costs once is spread over its messages.
func TestAllocationsOfStreams(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, and makes pools forget")
	}
	c := ticks(t)
	for name, test := range map[string]struct {
		run      func(testing.TB, *yodel.Client, int)
		expected float64 // objects for each message
	}{
		"feed":   {runFeed, 1},      // new(tagged)
		"upload": {runUpload, 1},    // likewise
		"echo":   {runEcho, 2 + 2},  // on either side, and what Next takes to call the function that a Recv is
		"raw":    {runRaw, 2. / 13}, // slabs of 13 messages
		"reuse":  {runRawReuse, 0},
	} {
		t.Run(name, func(t *testing.T) {
			test.run(t, c, allocWarmUp)
			least := test.expected + 1000
			for attempt := 0; attempt < 5 && least > test.expected+allocSlack; attempt++ {
				least = min(least, float64(mallocs(func() { test.run(t, c, allocCalls) }))/allocCalls)
			}
			t.Logf("%.3f allocations for each message", least)
			if least > test.expected+allocSlack || least < test.expected-allocSlack {
				t.Errorf("a message makes %.3f allocations, want %v", least, test.expected)
			}
		})
	}
}

const largeEcho yodel.Method[[]byte, []byte] = "Large.Echo"

// BenchmarkLarge echoes large bodies through yodel, on one connection, and through plain TCP
// connections, one for each caller: a length and the bytes. The other side is a process of its own,
// and every echo is compared. An iteration is a round of both, one after the other, and a third
// part in which ten callers make small calls beside the large ones; use -benchtime=9x or so. The
// figures are the medians of the rounds: what plain TCP moves, which part of that yodel does, how
// much more CPU time it takes in both processes, and of all small calls the latencies.
func BenchmarkLarge(b *testing.B) {
	server := startLargeServer(b)
	for _, size := range []int{64 << 10, 1 << 20, 16<<20 - 1024} {
		for _, callers := range []int{1, 4} {
			b.Run(fmt.Sprintf("%dKiB/%d", (size+1023)>>10, callers), func(b *testing.B) {
				c := newClient(b, &yodel.ClientOptions{Codec: raw.Codec}, server.addr)
				conns := make([]net.Conn, callers)
				for i := range conns {
					conns[i] = dialLarge(b, server.plain)
				}
				body := randomBytes(size)
				memory := make([][]byte, callers)
				throughYodel := func(int) error {
					reply, err := largeEcho.Call(b.Context(), c, &body)
					if err == nil && !bytes.Equal(*reply, body) {
						err = errors.New("other bytes came back")
					}
					return err
				}
				throughTCP := func(i int) error { return echoPlainly(conns[i], &memory[i], body) }
				var took []time.Duration
				var tookMu sync.Mutex
				beside := func(int) error {
					began := time.Now()
					err := c.Do(b.Context(), &yodel.Call{Method: string(inspect.Ping), Args: &Empty{}, Codec: yodel.JSON})
					tookMu.Lock()
					defer tookMu.Unlock()
					took = append(took, time.Since(began))
					return err
				}
				must(b, beside(0))
				took = took[:0]
				var plain, share, cost []float64
				for range b.N {
					tcp, tcpCPU := server.measure(b, callers, size, throughTCP, nil)
					own, ownCPU := server.measure(b, callers, size, throughYodel, nil)
					server.measure(b, callers, size, throughYodel, beside)
					plain, share, cost = append(plain, tcp), append(share, own/tcp), append(cost, ownCPU/tcpCPU)
				}
				slices.Sort(took)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(plain), "tcp-MB/s")
				b.ReportMetric(median(share), "share")
				b.ReportMetric(median(cost), "cpu")
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
				b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
			})
		}
	}
}

func median(of []float64) float64 {
	slices.Sort(of)
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}

// A largeServer is the other process.
type largeServer struct {
	addr, plain string
	pid         int
}

// callersBeside is how many make small calls beside the large ones.
const callersBeside = 10

// measure lets callers echo for a while, and calls beside meanwhile. It returns how much moved in a
// second, in MB one way, and the CPU time that a byte took.
func (s *largeServer) measure(b *testing.B, callers, size int, echo, beside func(caller int) error) (moved, cpu float64) {
	b.Helper()
	const while = 300 * time.Millisecond
	var n atomic.Int64
	var callersDone sync.WaitGroup
	used := cpuTime(b, os.Getpid()) + cpuTime(b, s.pid)
	began := time.Now()
	call := func(callers int, f func(int) error, n *atomic.Int64) {
		for i := range callers {
			callersDone.Go(func() {
				for time.Since(began) < while {
					if err := f(i); err != nil {
						b.Error(err)
						return
					}
					n.Add(1)
				}
			})
		}
	}
	call(callers, echo, &n)
	if beside != nil {
		call(callersBeside, beside, new(atomic.Int64))
	}
	callersDone.Wait()
	bytes := float64(n.Load()) * float64(size)
	moved = bytes / 1e6 / time.Since(began).Seconds()
	return moved, float64(cpuTime(b, os.Getpid())+cpuTime(b, s.pid)-used) / bytes
}

// cpuTime returns how long a process has run, in nanoseconds, or 1 where that cannot be said.
func cpuTime(b *testing.B, pid int) (sum int64) {
	b.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 1
	}
	for _, task := range tasks {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if err != nil {
			continue // it has ended
		}
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		must(b, err)
		sum += n
	}
	return sum
}

// dialLarge connects to the server that speaks no protocol.
func dialLarge(b *testing.B, addr string) net.Conn {
	b.Helper()
	conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", addr)
	must(b, err)
	b.Cleanup(func() { conn.Close() })
	return conn
}

// echoPlainly does what a call does, without a framework.
func echoPlainly(conn net.Conn, memory *[]byte, body []byte) error {
	if err := writePlainly(conn, body); err != nil {
		return err
	}
	reply, err := readPlainly(conn, memory)
	if err == nil && !bytes.Equal(reply, body) {
		err = errors.New("other bytes came back")
	}
	return err
}

func writePlainly(conn net.Conn, body []byte) error {
	buffers := net.Buffers{binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body}
	_, err := buffers.WriteTo(conn)
	return err //nolint:wrapcheck // it says what was done
}

func readPlainly(conn net.Conn, memory *[]byte) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(size[:]))
	if cap(*memory) < n {
		*memory = make([]byte, n)
	}
	_, err := io.ReadFull(conn, (*memory)[:n])
	return (*memory)[:n], err
}

// largeServerEnv makes the test binary the server of BenchmarkLarge, until its standard input ends.
const largeServerEnv = "YODEL_LARGE_SERVER"

func startLargeServer(b *testing.B) *largeServer {
	b.Helper()
	cmd := exec.CommandContext(context.Background(), os.Args[0]) // its standard input ends it
	cmd.Env = append(os.Environ(), largeServerEnv+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(b, err)
	stdout, err := cmd.StdoutPipe()
	must(b, err)
	must(b, cmd.Start())
	b.Cleanup(func() {
		stdin.Close()
		must(b, cmd.Wait())
	})
	s := &largeServer{pid: cmd.Process.Pid}
	_, err = fmt.Fscan(bufio.NewReader(stdout), &s.addr, &s.plain)
	must(b, err)
	return s
}

// serveLarge is the server's main function.
func serveLarge() error {
	var lc net.ListenConfig
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	listeners := make([]net.Listener, 2)
	for i := range listeners {
		l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err //nolint:wrapcheck // it says what was done
		}
		defer l.Close()
		listeners[i] = l
	}
	fmt.Fprintln(os.Stdout, listeners[0].Addr(), listeners[1].Addr())
	go servePlainly(listeners[1])
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	s := yodel.NewServer(nil)
	largeEcho.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
	if err := s.Serve(ctx, listeners[0]); !errors.Is(err, yodel.ErrServerClosed) {
		return err //nolint:wrapcheck // it says what was done
	}
	return nil
}

func servePlainly(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer conn.Close()
			var memory []byte
			for {
				body, err := readPlainly(conn, &memory)
				if err != nil || writePlainly(conn, body) != nil {
					return // the client has gone
				}
			}
		}()
	}
}
