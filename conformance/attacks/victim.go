// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// victimRole is that of the server under attack.
const victimRole = "victim"

// victimMemory is the address space of a victim. One that needs more has lost, and ends.
const victimMemory = 3 << 30

// The methods of each victim.
const (
	Echo yodel.Method[[]byte, []byte] = "T.Echo"
	// Block waits until its context ends.
	Block yodel.Method[[]byte, []byte] = "T.Block"
	// Wait does the same. Tests call it to see how many places the attack leaves.
	Wait yodel.Method[[]byte, []byte] = "T.Wait"
	// Pause takes 300 ms.
	Pause yodel.Method[[]byte, []byte] = "T.Pause"
	// Big answers with 1 MiB.
	Big yodel.Method[[]byte, []byte] = "T.Big"
	// List decodes a list of structs and returns its length.
	List yodel.Method[[]Item, int] = "T.List"
	// Fill sends messages of 4 KiB until its context ends.
	Fill yodel.Feed[[]byte, []byte] = "T.Fill"
	// Quiet waits until its context ends, and receives nothing.
	Quiet yodel.Duplex[[]byte, []byte] = "T.Quiet"
	// Repeat sends what it receives.
	Repeat yodel.Duplex[[]byte, []byte] = "T.Repeat"
)

// An Item is an element of a list: 160 bytes when decoded.
type Item struct {
	A, B, C, D, E string
	F, G, H, I, J int
}

// A Victim says which server an attack meets. The zero value has default options.
type Victim struct {
	Options yodel.ServerOptions
	// Methods is how many more methods the server has.
	Methods int
	// Listen is how the server listens. Default: TCP on the loopback interface.
	Listen func() (net.Listener, error)
	// Setup registers more methods.
	Setup func(*yodel.Server)
}

// Stats is what a victim says of itself.
type Stats struct {
	Heap       int64 // bytes that are live, and stacks
	Goroutines int
	Running    int64 // calls of Block, Pause and Quiet that run
	Waiting    int64 // calls of Wait that run
	Lines      int64 // that were logged
	LineBytes  int64
	CPU        time.Duration
}

// The counters of this process, which is a victim.
var running, waiting, logLines, logBytes atomic.Int64

// serveVictim is the victim's process. It prints its address. The commands are "stats", which
// collects garbage first, and "count".
func serveVictim(v Victim) {
	raiseFileLimit()
	if err := limitAddressSpace(victimMemory); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if v.Listen == nil {
		v.Listen = func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	}
	if v.Options.Logger == nil {
		v.Options.Logger = slog.New(slog.NewTextHandler(countedLog{}, nil))
	}
	s := yodel.NewServer(&v.Options)
	handleAll(s, v)
	l, err := v.Listen()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	go func() {
		err := s.Serve(context.Background(), l)
		fmt.Fprintln(os.Stderr, "Serve returned:", err)
		os.Exit(1)
	}()
	answer(func(command string) any { return stats(command == "stats") })
}

func handleAll(s *yodel.Server, v Victim) {
	big := bytes.Repeat([]byte("big "), 1<<18)
	chunk := bytes.Repeat([]byte("fill"), 1<<10)
	Echo.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
	Block.Handle(s, untilDone(&running))
	Wait.Handle(s, untilDone(&waiting))
	Pause.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) {
		defer count(&running)()
		<-time.After(300 * time.Millisecond)
		return in, nil
	})
	Big.Handle(s, func(context.Context, *[]byte) (*[]byte, error) { return new(bytes.Clone(big)), nil })
	List.Handle(s, func(_ context.Context, in *[]Item) (*int, error) { return new(len(*in)), nil })
	Fill.Handle(s, func(_ context.Context, _ *[]byte, send yodel.Send[[]byte]) error {
		for {
			if err := send(&chunk); err != nil {
				return err
			}
		}
	})
	Quiet.Handle(s, func(ctx context.Context, _ yodel.Recv[[]byte], _ yodel.Send[[]byte]) error {
		defer count(&running)()
		<-ctx.Done()
		return ctx.Err()
	})
	Repeat.Handle(s, func(_ context.Context, recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
		for msg, err := range recv {
			if err == nil {
				err = send(msg)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	for i := range v.Methods {
		name := fmt.Sprintf("Warehouse.TakeOutOfSection%d", i)
		if err := s.Handle(name, func(context.Context, *struct{}) (*struct{}, error) { return new(struct{}), nil }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if v.Setup != nil {
		v.Setup(s)
	}
}

func untilDone(running *atomic.Int64) func(context.Context, *[]byte) (*[]byte, error) {
	return func(ctx context.Context, _ *[]byte) (*[]byte, error) {
		defer count(running)()
		<-ctx.Done()
		return nil, ctx.Err()
	}
}

func count(running *atomic.Int64) (done func()) {
	running.Add(1)
	return func() { running.Add(-1) }
}

func stats(collect bool) Stats {
	s := Stats{
		Goroutines: runtime.NumGoroutine(), Running: running.Load(), Waiting: waiting.Load(),
		Lines: logLines.Load(), LineBytes: logBytes.Load(), CPU: processorTime(),
	}
	if collect {
		// What the victim allocates while the collector marks counts as live. A low GOGC bounds
		// that to a few percent of the heap, where the default of 100 allows as much again.
		defer debug.SetGCPercent(debug.SetGCPercent(5))
		runtime.GC()
		runtime.GC() // what was in a sync.Pool survives the first one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s.Heap = int64(m.HeapAlloc + m.StackInuse) //nolint:gosec // less than victimMemory
	}
	return s
}

// A countedLog counts lines and keeps none.
type countedLog struct{}

func (countedLog) Write(b []byte) (int, error) {
	logLines.Add(1)
	logBytes.Add(int64(len(b)))
	return len(b), nil
}
