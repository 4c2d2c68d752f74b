// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
)

// A scanner is an actor that waits with each message until the test ends.
type scanner struct{ end chan struct{} }

type leaf struct{ Number int }

func (s *scanner) scan(context.Context, *leaf) error {
	<-s.end
	return nil
}

// startActors starts two processes' worth of actors. Those of the first have more messages.
func startActors(t *testing.T, folder string) (addr string) {
	t.Helper()
	scanners, idlers := actor.NewKind("Scanner", actor.On((*scanner).scan)), actor.NewKind("Idler", actor.On((*scanner).scan))
	for i, n := range []int{maxActors + 3, 2} {
		quiet := slog.New(slog.DiscardHandler)
		system := actor.NewSystem(&actor.Options{Server: &yodel.ServerOptions{Diagnostics: true, Registrars: []discovery.Registrar{file.New(folder, nil)}, Logger: quiet}, Logger: quiet})
		s := &scanner{make(chan struct{})}
		t.Cleanup(func() {
			close(s.end)
			if err := system.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		})
		if err := system.Listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if _, err := idlers.Start(system, "idler", s, nil); err != nil {
			t.Fatal(err)
		}
		for j := range n {
			ref, err := scanners.Start(system, fmt.Sprintf("scanner-%d-%02d", i, j), s, nil)
			if err != nil {
				t.Fatal(err)
			}
			for m := range j + 2 { // the first one is handled
				if err := system.Send(t.Context(), ref, &leaf{m}); err != nil {
					t.Fatal(err)
				}
			}
		}
		until(t, "each actor handles its first message", func() bool { return system.List().Waiting == n*(n+1)/2 })
		if i == 0 {
			addr = system.Addr()
		}
	}
	until(t, "both processes are listed", func() bool {
		out := run(t, folder, "ls").out
		return strings.Count(out, " 2/2 ") == 3 // Scanner, Idler, actors
	})
	return addr
}

// The command ls shows the actors of a kind in all processes, or all actors, and describe shows
// those of a process: those with the longest inboxes first.
func TestActorsAreListed(t *testing.T) {
	folder := t.TempDir()
	addr := startActors(t, folder)
	actorsIn := func(args ...string) (table string) {
		until(t, strings.Join(args, " ")+" lists the actors", func() bool {
			out := run(t, folder, args...).out
			i := strings.Index(out, "ACTOR")
			if i < 0 {
				return false
			}
			table = out[i:]
			return true
		})
		return stable(table, folder)
	}
	golden(t, "actors", "yodel ls Scanner\n"+actorsIn("ls", "Scanner")+"\nyodel ls actors\n"+actorsIn("ls", "actors")+"\nyodel describe ADDR\n"+actorsIn("describe", addr))
	var row serviceRow
	if err := json.Unmarshal([]byte(run(t, folder, "ls", "Idler", "-o", "json").out), &row); err != nil || row.Actors == nil || len(row.Actors.Actors) != 2 || row.Actors.Actors[0].Addr == "" {
		t.Errorf("the actors of a kind without messages: %+v, %v", row.Actors, err)
	}
}
