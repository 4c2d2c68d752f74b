// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// The screen Live says why the console refuses to watch, and has no filter that the user cannot
// see.
func TestBrowserWatchesWhatItSays(t *testing.T) {
	b, s, c, base := newBrowserOf(t, nil)
	for i := range maxTaps {
		c.taps.add(fmt.Sprint(i), 1)
	}
	b.open(base+"/live?service=Stock", "pages watch calls already")
	for i := range maxTaps {
		c.taps.add(fmt.Sprint(i), -1)
	}
	b.mu.Lock()
	b.faults = nil // the status 429
	b.mu.Unlock()
	// A number of milliseconds with a fraction is rounded: the console would ignore it.
	b.open(base+"/live?service=Stock&slower=0.5", "Watching 3 instances")
	b.until("document.querySelector('main input[type=number]').value === '1'")
	b.open(base+"/live?service=Stock&addr="+s.addrs["Stock"][0], "Watching 1 instance")
	b.waitFor("Stock.Reserve")
	// What was seen with other filters is gone: nobody calls Mail.
	b.open(base+"/live?service=Stock", "Stock.Reserve")
	b.eval("(e => { e.value = 'Stock.Nothing'; e.dispatchEvent(new Event('change', { bubbles: true })) })(document.querySelector('main input'))")
	b.waitFor("No calls of Stock yet")
	b.open(base+"/live?service=Stock&addr="+s.addrs["Stock"][1], "Watching 1 instance")
	b.click(".chip[title='Remove this filter']")
	b.waitFor("Watching 3 instances")
	b.open(base+"/live?service=Stock&addr="+s.addrs["Stock"][1], "Watching 1 instance")
	b.pick("main select", "Orders")
	b.waitFor("Orders.Place")
	b.check("live")
}

// The records of a screen are those of its filters, all of which are shown.
func TestBrowserShowsTheSamplesThatWereChosen(t *testing.T) {
	b := newBrowser(t)
	s := &shop{registry: memory.New(nil), addrs: make(map[string][]string)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.serve(ctx, t, s.registry, "Broken", "v1", func(server *yodel.Server) error {
		return server.Handle("Broken.Ask", func(string) (string, error) { return "", yodel.Errorf(yodel.Unavailable, "no") })
	})
	caller := yodel.NewClient(s.registry.Service("Broken"), nil)
	defer caller.Close()
	fail := func(times int) {
		for range times {
			if err := caller.Call(t.Context(), "Broken.Ask", "?", nil); err == nil {
				t.Fatal("the call has succeeded")
			}
		}
	}
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "Broken")
	fail(3)
	rows := func(n int) { b.until(fmt.Sprintf("document.querySelectorAll('.list button').length === %d", n)) }
	b.open(base+"/samples?service=Broken", "Broken.Ask")
	rows(3)
	// The chosen record stays chosen when newer ones come.
	b.click(".list li:nth-child(2) button")
	b.until("!!document.querySelector('.list li:nth-child(2) .chosen')")
	fail(2)
	rows(5)
	if got := b.eval("[...document.querySelectorAll('.list button')].map(e => e.matches('.chosen')).join()"); got != `"false,false,false,true,false"` {
		t.Errorf("chosen are %s", got)
	}
	// A group is a filter that is shown, until the kind changes.
	b.click(".groups button")
	b.waitFor("✕")
	b.click("main [role=tab]:nth-child(3)")
	b.until("!document.querySelector('main .bar .chip')")
	// A file that is no record says so.
	for text, want := range map[string]string{
		`{"text":1}`: "odd.json is not a record", `{"method":"A.B","took":"long"}`: "odd.json is not a record", `no JSON`: "odd.json is not a record",
		`{"method":"A.Imported","side":"server","took":5000000}`: "A.Imported",
	} {
		b.eval(fmt.Sprintf(`(e => {
			const files = new DataTransfer();
			files.items.add(new File([%q], "odd.json"));
			e.files = files.files;
			e.dispatchEvent(new Event("change", { bubbles: true }));
		})(document.querySelector("main input[type=file]"))`, text))
		b.waitFor(want)
		b.check(text)
	}
	b.tabTo("main .bar button:not([role])")
	if got := b.value("document.activeElement.innerText"); got != "Import" {
		t.Errorf("Tab reaches %q, want the import", got)
	}
}

// A record says for whom the call was made, and leads to the other records of its trace. It shows
// no metadata.
func TestBrowserFollowsTheTraceOfASample(t *testing.T) {
	const trace, other = "4bf92f3577b34da6a3ce929d0e0e4736", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	b := newBrowser(t)
	s := &shop{registry: memory.New(nil), addrs: make(map[string][]string)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.serve(ctx, t, s.registry, "Broken", "v1", func(server *yodel.Server) error {
		return server.Handle("Broken.Ask", func(string) (string, error) { return "", yodel.Errorf(yodel.Unavailable, "no") })
	})
	caller := yodel.NewClient(s.registry.Service("Broken"), &yodel.ClientOptions{Name: "web"})
	defer caller.Close()
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "Broken")
	for _, id := range []string{trace, other, trace} {
		call := &yodel.Call{
			Method: "Broken.Ask", Args: yodel.Values{"?"}, Tenant: "acme", Trace: "00-" + id + "-00f067aa0ba902b7-01 vendor=hunter2", Metadata: yodel.Metadata{"authorization": "hunter2"},
		}
		if err := caller.Do(t.Context(), call); yodel.CodeOf(err) != yodel.Unavailable {
			t.Fatalf("the call has ended with %v", err)
		}
	}
	b.open(base+"/samples?service=Broken", "Broken.Ask")
	for _, want := range []string{"Caller web", "Tenant acme", "Trace " + trace} {
		if text := b.text(); !strings.Contains(text, want) || strings.Contains(text, "hunter2") {
			t.Errorf("the record does not say %q, or shows a secret:\n%s", want, text)
		}
	}
	b.check("samples")
	b.shoot("samples-trace")
	b.click(".waterfall p a")
	b.until(fmt.Sprintf("new URLSearchParams(location.search).get('trace') === %q && document.querySelectorAll('.list button').length === 2", trace))
	if got := b.value("document.querySelector('[data-cli]').title"); got != "yodel samples --trace "+trace {
		t.Errorf("the command is %s", got)
	}
	b.check("the trace")
	b.shoot("samples-of-trace")
}
