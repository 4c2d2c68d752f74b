// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// These benchmarks have the server in another process, because that is what decides how long a lone
// caller waits: beside the time for each call they report the median (p50-µs), the CPU time of each
// side (ccpu-µs, scpu-µs) and the client's reads. Compare only runs that alternate: how long a
// sleeping processor takes to wake up changes from hour to hour.

const benchBody = 581

// serveBench is the other process. It serves with mux, with mux that is parked, which is to say
// that it does not poll, or raw: with a loop over a socket. It prints its address, then its CPU
// time for each line that it reads, and ends with its input.
func serveBench(with string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	cfg := &mux.Config{Limits: defaultLimits(), Pool: mux.NewPool(), Watch: inline.NewWatch()}
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	cfg.Bind = s.bind(s.serves)
	if with == "parked" {
		cfg.Polling = 0
	}
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			if with != "raw" {
				mux.New(nc, nil, false, cfg)
				continue
			}
			go func() {
				buf := make([]byte, benchBody+12)
				for {
					if _, err := io.ReadFull(nc, buf); err != nil {
						return
					}
					if _, err := nc.Write(buf); err != nil {
						return
					}
				}
			}()
		}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(cpuTime().Microseconds())
	}
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A served is the other process, as seen from this one.
type served struct {
	b       *testing.B
	addr    string
	process *os.Process
	in      io.Writer
	out     *bufio.Scanner
}

func serveApart(b *testing.B, with string) *served {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), serveEnv+"="+with), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	s := &served{b: b, process: cmd.Process, in: in, out: bufio.NewScanner(out)}
	s.addr = s.line()
	return s
}

func (s *served) line() string {
	s.b.Helper()
	line, err := await.Line(s.out, "a line of the other process", s.process)
	if err != nil {
		s.b.Fatal(err)
	}
	return line
}

// cpu is what the other process has used.
func (s *served) cpu() time.Duration {
	s.b.Helper()
	fmt.Fprintln(s.in)
	us, err := strconv.Atoi(strings.TrimSpace(s.line()))
	if err != nil {
		s.b.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

func (s *served) dial() net.Conn {
	s.b.Helper()
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.b.Fatal(err)
	}
	s.b.Cleanup(func() { nc.Close() })
	return nc
}

// A benchCaller makes a number of calls and appends how long they took.
type benchCaller func(calls int, took []time.Duration) []time.Duration

// run measures b.N calls by some callers.
func (s *served) run(reads func() uint64, callers ...benchCaller) {
	b := s.b
	for _, caller := range callers {
		caller(300, nil)
	}
	b.ResetTimer()
	own, peer, before := cpuTime(), s.cpu(), reads()
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	for _, caller := range callers {
		wg.Go(func() {
			n := max(b.N/len(callers), 1)
			took := caller(n, make([]time.Duration, 0, n))
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	n := float64(len(all))
	b.ReportMetric(float64((cpuTime()-own).Nanoseconds())/n/1000, "ccpu-µs")
	b.ReportMetric(float64((s.cpu()-peer).Nanoseconds())/n/1000, "scpu-µs")
	b.ReportMetric(float64(reads()-before)/n, "creads")
	b.StopTimer()
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1000, "p99-µs")
}

func BenchmarkTwoProcesses(b *testing.B) {
	b.Run("raw/1", func(b *testing.B) {
		s := serveApart(b, "raw")
		nc, buf := s.dial(), make([]byte, benchBody+12)
		s.run(func() uint64 { return 0 }, func(calls int, took []time.Duration) []time.Duration {
			for range calls {
				start := time.Now()
				if _, err := nc.Write(buf); err != nil {
					b.Error(err)
				}
				if _, err := io.ReadFull(nc, buf); err != nil {
					b.Error(err)
				}
				took = append(took, time.Since(start))
			}
			return took
		})
	})
	for _, with := range []string{"mux", "parked"} {
		for _, callers := range []int{1, 2, 4, 10, 100} {
			b.Run(fmt.Sprintf("%s/%d", with, callers), func(b *testing.B) { benchApart(b, with, callers, 1) })
		}
		for _, conns := range []int{2, 10, 100} {
			b.Run(fmt.Sprintf("%s/each of %d", with, conns), func(b *testing.B) { benchApart(b, with, conns, conns) })
		}
	}
}

func benchApart(b *testing.B, with string, callers, conns int) {
	s := serveApart(b, with)
	var all []*mux.Conn
	var calls []benchCaller
	for range conns {
		c, call := s.connect(with)
		b.Cleanup(c.Close)
		all = append(all, c)
		for range callers / conns {
			calls = append(calls, call)
		}
	}
	s.run(func() (n uint64) {
		for _, c := range all {
			n += c.Counters().Reads
		}
		return n
	}, calls...)
}

// connect returns a connection, and what makes calls on it.
func (s *served) connect(with string) (*mux.Conn, benchCaller) {
	s.b.Helper()
	cfg := new(setup).config(s.b, mux.Config{}, nil)
	if with == "parked" {
		cfg.Polling = 0
	}
	c := mux.New(s.dial(), nil, true, cfg)
	body := make([]byte, benchBody)
	return c, func(calls int, took []time.Duration) []time.Duration {
		out := &mux.Out{Method: echo, Body: body}
		for range calls {
			start := time.Now()
			a, err := c.Call(context.Background(), out)
			if err != nil {
				s.b.Error(err)
				return took
			}
			a.Release()
			took = append(took, time.Since(start))
		}
		return took
	}
}

// BenchmarkIdle reports the CPU time of both sides in a second without calls, just after many: for
// 10 connections, each with a lone caller before.
func BenchmarkIdle(b *testing.B) {
	for _, with := range []string{"mux", "parked"} {
		b.Run(with, func(b *testing.B) {
			s := serveApart(b, with)
			for range 10 {
				c, call := s.connect(with)
				b.Cleanup(c.Close)
				call(1000, nil)
			}
			own, peer := cpuTime(), s.cpu()
			b.ResetTimer()
			for range b.N {
				<-time.After(time.Second)
			}
			b.ReportMetric(float64((cpuTime()-own).Microseconds())/1000/float64(b.N), "ccpu-ms")
			b.ReportMetric(float64((s.cpu()-peer).Microseconds())/1000/float64(b.N), "scpu-ms")
		})
	}
}
