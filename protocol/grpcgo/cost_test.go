// SPDX-License-Identifier: Apache-2.0

//go:build unix && !race

package grpcgo_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// costMethod is a unary method of gRPC that returns its request.
const costMethod = "cost.Echo/Say"

// costServer is the environment variable with the kind of the server that the process is: see
// TestCostServer.
const costServer = "YODEL_COST_SERVER"

// The processor time of a call in yodel's server is at most a part of that in grpc-go's, for the
// same client of grpc-go over one connection. It is about 0.3 with 10 callers, and 0.2 with 100 and
// with 1000.
func TestCallsCostLessThanThoseOfGRPC(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	theirs, ours := startCostServer(t, "grpc-go"), startCostServer(t, "yodel")
	for _, test := range []struct {
		callers int
		most    float64
	}{{10, 0.5}, {100, 0.4}, {1000, 0.35}} {
		var ratios []float64
		for range 5 {
			ratios = append(ratios, ours.cost(t, test.callers)/theirs.cost(t, test.callers))
		}
		slices.Sort(ratios)
		t.Logf("%d callers: %.2f of the processor time of grpc-go's server", test.callers, ratios)
		if median := ratios[len(ratios)/2]; median > test.most {
			t.Errorf("%d callers: a call costs %.2f of one in grpc-go's server, want at most %.2f", test.callers, median, test.most)
		}
	}
}

// A costed is a server in a process of its own, and a client.
type costed struct {
	client  *grpc.ClientConn
	process *os.Process
	input   io.Writer
	output  *bufio.Scanner
}

// startCostServer starts a server of a kind, which ends with the test.
func startCostServer(t *testing.T, kind string) *costed {
	t.Helper()
	program := exec.Command(os.Args[0], "-test.run=^TestCostServer$") // #nosec G204 -- it is this program
	program.Env = append(os.Environ(), costServer+"="+kind)
	program.Stderr = os.Stderr
	input, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = program.Start(); err != nil {
		t.Fatal(err)
	}
	s := &costed{process: program.Process, input: input, output: bufio.NewScanner(output)}
	t.Cleanup(func() {
		_ = input.Close() // the server ends
		if err := program.Wait(); err != nil {
			t.Errorf("the server %s: %v", kind, err)
		}
	})
	if s.client, err = grpc.NewClient(s.line(t), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	return s
}

// line returns the next line of the server.
func (s *costed) line(t *testing.T) string {
	t.Helper()
	line, err := await.Line(s.output, "a line of the server", s.process)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// used returns the processor time that the server has used.
func (s *costed) used(t *testing.T) time.Duration {
	t.Helper()
	if _, err := io.WriteString(s.input, "\n"); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(s.line(t), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}

// cost returns the processor time of a call in the server, in seconds, when callers call it for a
// second.
func (s *costed) cost(t *testing.T, callers int) float64 {
	t.Helper()
	request := &wrapperspb.BytesValue{Value: make([]byte, 100)}
	var calls atomic.Int64
	call := func(until time.Duration) {
		var all sync.WaitGroup
		end := time.Now().Add(until)
		for range callers {
			all.Go(func() {
				for time.Now().Before(end) {
					if err := s.client.Invoke(t.Context(), "/"+costMethod, request, new(wrapperspb.BytesValue)); err != nil {
						t.Error(err)
						return
					}
					calls.Add(1)
				}
			})
		}
		all.Wait()
	}
	call(100 * time.Millisecond) // the windows and tables of the connection have grown
	calls.Store(0)
	before := s.used(t)
	call(time.Second)
	used := s.used(t) - before
	if t.Failed() {
		t.FailNow()
	}
	return used.Seconds() / float64(calls.Load())
}

// TestCostServer is a process of TestCallsCostLessThanThoseOfGRPC. It prints its address, and its
// processor time for each line that it reads.
func TestCostServer(t *testing.T) {
	kind := os.Getenv(costServer)
	if kind == "" {
		t.Skip("it is a process of TestCallsCostLessThanThoseOfGRPC")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if kind == "yodel" {
		defer serveEcho(t, l)()
	} else {
		defer serveGRPC(t, l)()
	}
	fmt.Println(l.Addr())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		fmt.Println(u.Utime.Nano() + u.Stime.Nano())
	}
}

// serveEcho serves the method in yodel's server until the caller calls stop.
func serveEcho(t *testing.T, l net.Listener) (stop func()) {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{codec{}}, Protocols: []yodel.Protocol{http.New(nil)}, Logger: slog.New(slog.DiscardHandler),
	})
	yodel.Method[wrapperspb.BytesValue, wrapperspb.BytesValue](costMethod).Handle(s, func(_ context.Context, in *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
		return in, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// serveGRPC serves the method in grpc-go's server until the caller calls stop.
func serveGRPC(t *testing.T, l net.Listener) (stop func()) {
	t.Helper()
	service, method, _ := strings.Cut(costMethod, "/")
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: method,
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.BytesValue)
			return in, decode(in)
		},
	}}}, nil)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	return func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
