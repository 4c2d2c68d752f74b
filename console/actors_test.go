// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// A printer is an actor that handles one message at a time, and waits until it may.
type printer struct{ may chan struct{} }

type sheet struct{ Number int }

func (p *printer) print(ctx context.Context, _ *sheet) error {
	select {
	case <-p.may:
	case <-ctx.Done():
	}
	return nil
}

// The page of an instance shows its actors, those with the longest inboxes first, and counts the
// others.
func TestBrowserShowsActors(t *testing.T) {
	const many = maxActors + 7
	r := memory.New(nil)
	system := actor.NewSystem(&actor.Options{Server: &yodel.ServerOptions{Diagnostics: true, Registrars: []discovery.Registrar{r}}, Logger: slog.New(slog.DiscardHandler)})
	printers := actor.NewKind("Printer", actor.On((*printer).print))
	p := &printer{make(chan struct{})}
	t.Cleanup(func() {
		close(p.may)
		must(t, system.Shutdown(context.Background()))
	})
	must(t, system.Listen("127.0.0.1:0"))
	for i := range many {
		ref, err := printers.Start(system, fmt.Sprintf("printer-%02d", i), p, nil)
		must(t, err)
		for n := range i { // the last one has the longest inbox
			must(t, system.Send(t.Context(), ref, &sheet{n}))
		}
	}
	announced(t, r.Service("Printer"), 1)
	b := newBrowser(t)
	c := newConsole(t, &shop{registry: r}, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "Printer")
	for language, want := range map[string][2]string{
		"en": {"57 actors, 1540 messages in their inboxes.", "The table has the 50 with the longest inboxes."},
		"zh": {"共 57 个 actor，信箱中共有 1540 条消息。", "下表列出信箱最长的 50 个。"},
	} {
		b.eval(fmt.Sprintf("localStorage.setItem('yodel-language', %q)", language))
		b.open(base+"/services/Printer/"+system.Addr(), want[0])
		b.waitFor(want[1])
		b.check("actors")
		rows := `[...document.querySelectorAll("#actors tbody tr")].map(r => [...r.cells].map(c => c.innerText).join(" ")).filter((_, i, all) => i === 0 || i === all.length - 1).join("; ")`
		if got, want := b.value(rows), "printer-56 Printer 55 0 0; printer-07 Printer 6 0 0"; got != want {
			t.Errorf("the first row and the last one are %q, want %q", got, want)
		}
		b.shoot("actors-" + language)
	}
}
