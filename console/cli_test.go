// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry/memory"
)

var update = flag.Bool("update", false, "write testdata/commands.txt")

// A line is what the demonstration of cmd/yodel adds to a cart, and item is what its stock counts.
type line struct {
	SKU string `json:"sku"`
	Qty int    `json:"qty"`
}

type item struct {
	SKU  string `json:"sku"`
	Left int    `json:"left"`
}

// commandPages are the pages that offer commands, for a fleet with the names of the demonstration
// of cmd/yodel. Edit has the arguments that the form of a call gets.
var commandPages = []struct{ path, edit string }{
	{"/services", ""},
	{"/services/shop.Cart?tab=methods", ""},
	{"/services/shop.Cart?tab=instances", ""},
	{"/rules?service=shop.Cart", ""},
	{"/live?service=shop.Cart", ""},
	{"/registry", ""},
	{"/checks", ""},
	{"/samples", ""},
	{"/samples?service=shop.Cart", ""},
	{"/call?service=shop.Cart&method=shop.Cart.Add&mode=json", `{"sku":"it's $(touch hacked) \"tea\"","qty":2}`},
	{"/call?service=shop.Stock&method=shop.Stock.Count&mode=json", `[{"sku":"a","left":1},{"sku":"b","left":2}]`},
}

// The commands that the pages offer are those in testdata/commands.txt. A test of cmd/yodel runs
// each of them with the real program.
func TestBrowserOffersCommandsThatRun(t *testing.T) {
	b := newBrowser(t)
	s := &shop{registry: memory.New(nil), addrs: make(map[string][]string)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.serve(ctx, t, s.registry, "shop.Cart", "v1", func(server *yodel.Server) error {
		return server.Handle("shop.Cart.Add", func(l *line) (*line, error) { return l, nil })
	})
	s.serve(ctx, t, s.registry, "shop.Stock", "v1", func(server *yodel.Server) error {
		yodel.Duplex[item, item]("shop.Stock.Count").Handle(server, func(_ context.Context, recv yodel.Recv[item], send yodel.Send[item]) error {
			for i, err := range recv {
				if err != nil {
					return err
				}
				if err := send(i); err != nil {
					return err
				}
			}
			return nil
		})
		return nil
	})
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "shop.Cart")
	as := login(t, c, base, User{"ann", Operator})
	status, _, body := request{method: "POST", path: "/api/rules/put", body: `{"service":"shop.Cart","id":"r","limit":{"perSecond":5000},"reason":"x"}`, header: as}.send(t, base)
	if status != 200 {
		t.Fatal(body)
	}
	var all []string
	for _, page := range commandPages {
		b.open(base+page.path, "yodel")
		if strings.HasPrefix(page.path, "/live") {
			b.waitFor("Watching")
			request{method: "POST", path: "/api/call", body: `{"service":"shop.Cart","method":"shop.Cart.Add","args":{}}`, header: as}.send(t, base)
		}
		eventually(t, page.path+" has a command", func() bool { return b.timing("document.querySelectorAll('[data-cli]').length") > 0 })
		if page.edit != "" {
			b.tabTo("form textarea")
			b.eval("document.activeElement.select()")
			b.write(page.edit)
		}
		var offered []string
		must(t, json.Unmarshal([]byte(b.eval("[...document.querySelectorAll('[data-cli]')].map(e => e.title)")), &offered))
		all = append(all, offered...)
	}
	slices.Sort(all)
	got := strings.Join(slices.Compact(all), "\n") + "\n"
	if *update {
		must(t, os.WriteFile("testdata/commands.txt", []byte(got), 0o600))
	}
	want, err := os.ReadFile("testdata/commands.txt")
	must(t, err)
	if got != string(want) {
		t.Errorf("the pages offer\n%s\ntestdata/commands.txt has\n%s\ngo test ./console -run Commands -update writes it; then run the tests of cmd/yodel", got, want)
	}
}
