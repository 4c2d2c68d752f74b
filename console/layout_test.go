// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// resize sets the size of the window.
func (b *browser) resize(width, height int) {
	b.t.Helper()
	if b.width == width && b.height == height {
		return
	}
	b.width, b.height = width, height
	b.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// newTroubledShop returns a shop with instances in every state that needs attention, and a browser
// that has opened its console.
func newTroubledShop(t *testing.T) (b *browser, s *shop, base string) {
	t.Helper()
	b, s, c, base := newBrowserOf(t, nil)
	for _, gone := range []string{"127.0.0.1:1", "127.0.0.1:2"} {
		must(t, s.registry.Announce(t.Context(), "warehouse.of.the.north.Shelves", discovery.Instance{Addr: gone, Version: "v2026.11.27-rc1"}, 0))
	}
	must(t, s.registry.Announce(t.Context(), "Empty", discovery.Instance{Addr: "127.0.0.1:3"}, 0))
	must(t, s.registry.Withdraw(t.Context(), "Empty", "127.0.0.1:3"))
	must(t, s.registry.Override(t.Context(), "Stock", s.addrs["Stock"][0], "inactive", 0))
	eventually(t, "the console knows all", func() bool {
		view, err := c.fleet.get(t.Context(), time.Minute)
		return err == nil && view.Service("warehouse.of.the.north.Shelves") != nil && view.Service("Stock").Up < 3
	})
	return b, s, base
}

// shootAt is shoot for a window of another size.
func (b *browser) shootAt(name string, width, height int) {
	b.t.Helper()
	if folder := os.Getenv("YODEL_SHOTS"); folder != "" {
		b.pictureOf(folder+"/"+name+".png", width, height)
	}
}

// Three words of English in a row are a sentence that a page in Chinese should not have. Names are
// not sentences.
var sentence = regexp.MustCompile(`\b[a-z]+ [a-z]+ [a-z]+\b`)

// In Chinese, what needs attention and what has changed is in Chinese too.
func TestBrowserSpeaksChineseThroughout(t *testing.T) {
	b, s, base := newTroubledShop(t)
	b.eval("localStorage.setItem('yodel-language', 'zh')")
	for path, want := range map[string]string{
		"/": "需要关注", "/services": "问题", "/services/Stock?tab=instances": s.addrs["Stock"][0], "/services/Stock/" + s.addrs["Stock"][0]: "已停用",
		"/services/warehouse.of.the.north.Shelves?tab=instances": "127.0.0.1:2", "/registry": "127.0.0.1:2", "/topology": "Orders", "/live": "正在查看",
	} {
		b.open(base+path, want)
		b.check(path)
		if found := sentence.FindString(b.text()); found != "" {
			t.Errorf("%s has the English words %q:\n%s", path, found, b.text())
		}
		b.shoot("zh-" + regexp.MustCompile(`\W+`).ReplaceAllString(path, "-"))
	}
}

// The sentences of processes are in Chinese, with the names and the texts in them, as the portrait
// of a fleet has them.
func TestBrowserTranslatesSentences(t *testing.T) {
	b := newBrowser(t)
	c := newConsole(t, &shop{registry: memory.New(nil)}, nil)
	c.fleet.open = func(time.Duration) reader { return &portrait{yodel.NewClient(discovery.Static(), nil)} }
	base := serveConsole(t, c)
	b.enter(c, base, "shop.Pay")
	b.eval("localStorage.setItem('yodel-language', 'zh')")
	b.open(base+"/", "需要关注")
	if found := sentence.FindString(b.text()); found != "" {
		t.Errorf("the page has the English words %q:\n%s", found, b.text())
	}
	b.waitFor("离群")
	b.check("overview")
}

// A sentence within a sentence, and a rule with the reason of its author, are in the order of the
// language.
func TestBrowserTranslatesSentencesInSentences(t *testing.T) {
	b := newBrowser(t)
	c := newConsole(t, &shop{registry: memory.New(nil)}, nil)
	now := time.Now()
	view := &fleet.View{At: now, Services: []*fleet.Service{{Name: "shop.Pay", State: fleet.Healthy}}, Events: []introspect.Event{
		{At: now, Kind: "ejected", Object: "10.0.0.1:1", What: "it is still bad: 5 calls in a row failed; it is tried again in 32.381s; 23 times in 3m", By: "outlier"},
		{At: now, Kind: "rule", Object: "shop.Pay/globex", What: "in force: limit the calls of shop.Pay for tenant globex to 2 a second in each process: too many calls for tenant globex (revision 7)", By: "ann"},
		{At: now, Kind: "rule", Object: "shop.Pay/x", What: "changed: refuse the calls of shop.Pay: oops (revision 2)", By: "ann"},
	}}
	c.fleet.open = func(time.Duration) reader {
		return &scripted{newCrowd(0, 0), func() (*fleet.View, error) { return view, nil }}
	}
	base := serveConsole(t, c)
	b.enter(c, base, "shop.Pay")
	b.eval("localStorage.setItem('yodel-language', 'zh')")
	b.open(base+"/", "变更")
	for _, want := range []string{
		"仍未恢复：连续 5 个调用失败；32.381 秒后再试；3 分钟内 23 次",
		"已生效：shop.Pay 中租户 globex 的调用在每个进程中限制为每秒 2 次（too many calls for tenant globex）（版本 7）",
		"已更改：拒绝 shop.Pay 的调用（oops）（版本 2）",
	} {
		if got := b.text(); !strings.Contains(got, want) {
			t.Errorf("the page has no %s:\n%s", want, got)
		}
	}
}

// Live shows the calls of all services at first, and the topology of a small fleet is the whole
// map.
func TestBrowserBeginsWithAll(t *testing.T) {
	b, _, _, base := newBrowserOf(t, nil)
	b.open(base+"/live", "Watching 5 instances")
	b.waitFor("Stock.Reserve")
	b.waitFor("Orders.Place")
	b.check("live")
	b.shoot("live-all")
	b.pick("main select", "Orders")
	b.waitFor("Watching 1 instance")
	b.open(base+"/topology", "Mail")
	b.until("document.querySelectorAll('.map .box').length === 4") // with web
	b.until("document.querySelector('[aria-pressed=true].chip:last-child') !== null")
	var at string
	must(t, json.Unmarshal([]byte(b.eval("location.search")), &at))
	if at != "" {
		t.Errorf("the address has %s", at)
	}
	b.check("topology")
	b.shoot("topology-all")

	many := newConsole(t, &shop{registry: memory.New(nil)}, &Options{Tokens: map[string]User{}})
	many.fleet.open = func(time.Duration) reader { return newCrowd(40, 1) }
	base = serveConsole(t, many)
	b.enter(many, base, "of 40 services")
	b.open(base+"/topology", "hops: 1")
	b.until("location.search.startsWith('?focus=')") // around the service that needs attention most
}
