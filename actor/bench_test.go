// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"

	"github.com/yodel-rpc/yodel/actor"
)

// eachWay runs a benchmark of an actor with a sender in its System, and with one in another System.
func eachWay(b *testing.B, f func(b *testing.B, from *actor.System, to actor.Ref)) {
	b.Helper()
	host, far := actor.NewSystem(nil), actor.NewSystem(nil)
	if err := host.Listen("127.0.0.1:0"); err != nil {
		b.Fatal(err)
	}
	defer host.Shutdown(context.Background())
	defer far.Shutdown(context.Background())
	for name, from := range map[string]*actor.System{"here": host, "far": far} {
		b.Run(name, func(b *testing.B) {
			ref, err := echoes.Start(host, name+strconv.Itoa(b.N)+"-"+b.Name(), &Echo{}, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			f(b, from, ref)
		})
	}
}

func BenchmarkSend(b *testing.B) {
	eachWay(b, func(b *testing.B, from *actor.System, to actor.Ref) {
		for i := range b.N {
			if err := from.Send(context.Background(), to, &Number{i}); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := actor.AskSync[Sum](context.Background(), from, to, &Total{}); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkAsk(b *testing.B) {
	eachWay(b, func(b *testing.B, from *actor.System, to actor.Ref) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := actor.AskSync[Said](context.Background(), from, to, &Say{"hello"}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// BenchmarkIdleActors measures the memory of an actor that has handled its OnStart, with its name.
func BenchmarkIdleActors(b *testing.B) {
	const n = 100_000
	for range b.N {
		s := actor.NewSystem(nil)
		before := heap()
		for i := range n {
			if _, err := echoes.Start(s, strconv.Itoa(i), new(Echo), nil); err != nil {
				b.Fatal(err)
			}
		}
		for s.List().Actors[0].Inbox > 0 {
			runtime.Gosched()
		}
		b.ReportMetric(float64(heap()-before)/n, "B/actor")
		if err := s.Shutdown(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
