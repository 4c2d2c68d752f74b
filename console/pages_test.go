// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/rules"
)

// An ill reader reads a real fleet, and adds a service with an ejected instance and one without any
// instance.
type ill struct {
	*fleet.Fleet
	portrait
	fails *atomic.Bool
}

func (r *ill) Close()                           { r.Fleet.Close(); r.portrait.Close() }
func (r *ill) Client(addr string) *yodel.Client { return r.Fleet.Client(addr) }

func (r *ill) Read(ctx context.Context, services ...string) (*fleet.View, error) {
	if r.fails.Load() {
		return nil, errors.New("dial tcp 10.0.0.9:2379: connect: connection refused")
	}
	view, err := r.Fleet.Read(ctx, services...)
	if err != nil {
		return nil, err
	}
	more, err := r.portrait.Read(ctx)
	pay := more.Services[0]
	for _, in := range pay.Instances {
		in.Live = nil // the page asks only instances that have live data
	}
	view.Services = slices.Insert(view.Services, 1, pay)
	view.Services = append(view.Services, &fleet.Service{Name: "Empty", State: fleet.Down, Problems: []fleet.Problem{{Kind: "none", Severity: fleet.Bad}}})
	view.Events = append(view.Events, more.Events...)
	return view, err
}

// The names of services with many instances and with long names.
const (
	longName  = "订单处理与库存同步中心服务（华东二区生产环境）"
	manyAddrs = 60
)

// newTroubledFleet returns a shop in which everything is wrong, and its console: a service that a
// rule has stopped, a canary, an instance that fails, one that is ejected, one that an operator has
// disabled, one whose setting cannot be read, services without instances, with long names, and with
// many instances that are gone.
func newTroubledFleet(t *testing.T, o *Options) (s *shop, c *Console, fails *atomic.Bool) {
	t.Helper()
	s = newShop(t)
	r := s.registry
	for i := range manyAddrs {
		must(t, r.Announce(t.Context(), longName, discovery.Instance{
			Addr: fmt.Sprintf("127.0.0.1:%d", i+1), Version: "v2026.11.27-rc1+构建8841", Zone: "华东二区", Tags: []string{"蓝绿", "灰度发布候选"},
		}, 0))
	}
	must(t, r.Announce(t.Context(), "warehouse.of.the.north.Shelves", discovery.Instance{Addr: "127.0.0.1:2"}, 0))
	stock := s.addrs["Stock"]
	must(t, r.Override(t.Context(), "Stock", stock[1], "inactive", 0))
	book, err := rules.Open(r)
	must(t, err)
	for _, rule := range []rules.Rule{
		{Service: "Stock", ID: "try", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10}},
		{Service: "Mail", ID: "boom", Disable: &rules.Disable{}},
		{Service: longName, ID: "half-price-week", Limit: &rules.Limit{PerSecond: 100}},
	} {
		rule.Author, rule.Reason = "张伟（值班工程师）", "变更单 CHG-20261127-0042：大促期间的临时限制，观察半小时后恢复"
		_, err := book.Put(t.Context(), rule)
		must(t, err)
	}
	must(t, r.Keep(t.Context(), "Stock", "rules", "torn", []byte(`{"schema":1,`)))
	must(t, r.Keep(t.Context(), "Stock", "overrides", stock[0], []byte(`{"state":"disabled"}`)))
	c = newConsole(t, s, o)
	fails = new(atomic.Bool)
	open := c.open
	c.fleet.open = func(span time.Duration) reader {
		return &ill{open(span).(*fleet.Fleet), portrait{yodel.NewClient(discovery.Static(), nil)}, fails}
	}
	return s, c, fails
}

// defects is a function of the page that returns what is wrong with its look, as texts: it is wider
// than the window, a text is too faint on what is behind it, or one is in the wrong language.
// English has the texts of the catalogue that differ in Chinese, or is empty. Elements with
// lang="en" show what processes say in English.
const defects = `async (english) => {
	await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
	english = new Set(english);
	const found = new Set();
	if (document.documentElement.scrollWidth > innerWidth) {
		const out = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, nav, .strip, .list"));
		found.add("the page is " + (document.documentElement.scrollWidth - innerWidth) + " px too wide: " + (out.at(-1)?.outerHTML ?? "").slice(0, 160));
	}
	for (const e of document.querySelectorAll("main *"))
		if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && /auto|scroll|hidden/.test(getComputedStyle(e).overflowX) && getComputedStyle(e).textOverflow !== "ellipsis" && !e.matches(".graph > .scroll, input"))
			found.add("a part is cut off: " + e.outerHTML.slice(0, 100) + " … " + e.innerText.slice(0, 80));
	for (const e of document.querySelectorAll("main .box text"))
		if (e.getBBox().x + e.getBBox().width > e.parentElement.querySelector("rect").width.baseVal.value) found.add("a text is wider than its box: " + e.textContent);
	for (const e of document.querySelectorAll("main .tick")) if (e.getBoundingClientRect().height < 9) found.add("the label " + e.textContent + " of a chart is " + e.getBoundingClientRect().height + " px high");
	const frame = document.querySelector("main")?.getBoundingClientRect().top ?? 0; // there is none before the login
	if (innerWidth <= 400 && frame > 120) found.add("the frame takes " + frame + " px of the height");
	const parse = (c) => { const n = c.match(/[\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
	const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
	const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const cached = (compute) => { const known = new Map(); return (e) => known.get(e) ?? known.set(e, compute(e)).get(e); };
	const behind = cached((e) => { // the color
		if (!e) return [255, 255, 255, 1];
		const rect = e.matches(".box text") ? e.parentElement.querySelector("rect") : null;
		const c = parse(rect ? getComputedStyle(rect).fill : e instanceof SVGElement ? "rgba(0,0,0,0)" : getComputedStyle(e).backgroundColor);
		return c[3] === 1 ? c : over(c, behind(e.parentElement));
	});
	const opacity = cached((e) => e ? Number(getComputedStyle(e).opacity) * opacity(e.parentElement) : 1);
	const faint = (e, color, style, text) => {
		const b = behind(e), c = parse(color);
		c[3] *= opacity(e);
		const [x, y] = [light(over(c, b)), light(b)], ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
		const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.5 && Number(style.fontWeight) >= 700);
		if (ratio < (large ? 3 : 4.5)) found.add("the contrast of " + JSON.stringify(text.slice(0, 60)) + " is " + ratio.toFixed(2) + " (" + e.tagName + "." + e.getAttribute("class") + ")");
	};
	const foreign = (e, text) => {
		if (english.size === 0 || e.closest("[lang=en], kbd, pre, code")) return;
		const bare = text.replace(/^[^\p{L}]+|[^\p{L}]+$/gu, "");
		if (english.has(bare) || /\b[a-z]+ [a-z]+ [a-z]+\b/.test(text)) found.add("it is not in Chinese: " + JSON.stringify(text.slice(0, 120)));
	};
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
		if (!text || !e.checkVisibility() || e.closest("script, style, title, .hidden, :disabled")) continue;
		const style = getComputedStyle(e);
		if (!e.closest("option")) faint(e, e instanceof SVGElement ? style.fill : style.color, style, text);
		foreign(e, text);
	}
	for (const e of document.querySelectorAll("[title], [placeholder], [aria-label]")) {
		for (const name of ["title", "placeholder", "aria-label"]) if (e.getAttribute(name) && e.dataset.copy === undefined) foreign(e, e.getAttribute(name));
		if (e.placeholder) faint(e, getComputedStyle(e, "::placeholder").color, getComputedStyle(e), e.placeholder);
	}
	for (const e of document.querySelectorAll("svg .line, svg .part, svg polyline")) {
		const style = getComputedStyle(e), c = style.stroke === "none" || e.matches(".part") ? style.fill : style.stroke;
		const b = behind(e.closest("svg").parentElement), [x, y] = [light(over(parse(c), b)), light(b)];
		if ((Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05) < 3 && !e.matches(".part.rest")) found.add("a line is faint: " + e.getAttribute("class"));
	}
	return [...found];
}`

// catalogue returns the texts of the pages in English that differ in Chinese, without those that
// have arguments.
func catalogue(t *testing.T) []string {
	t.Helper()
	read := func(file string) map[string]string {
		source, err := os.ReadFile("web/src/" + file)
		must(t, err)
		texts := make(map[string]string)
		for _, m := range regexp.MustCompile(`(?m)^\t("[^"]+"): (".*"),$`).FindAllStringSubmatch(string(source), -1) {
			var text string
			must(t, json.Unmarshal([]byte(m[2]), &text))
			texts[m[1]] = text
		}
		return texts
	}
	english, chinese := read("en.ts"), read("zh.ts")
	var out []string
	for key, text := range english {
		if text != chinese[key] && !strings.Contains(text, "{") {
			out = append(out, strings.TrimFunc(text, func(c rune) bool {
				return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", c)
			}))
		}
	}
	if len(out) < 100 {
		t.Fatalf("the catalogue has %d texts", len(out))
	}
	return out
}

// alike are the parameters in addresses whose values make no other kind of page.
var alike = regexp.MustCompile(`^(method|rule|focus|addr|error|edit|edge)$`)

// shapeOf returns what distinguishes the address of a page from those of other kinds of pages.
func shapeOf(t *testing.T, address string) string {
	t.Helper()
	at, err := url.Parse(address)
	must(t, err)
	parts := strings.Split(strings.Trim(at.Path, "/"), "/")
	for i := 1; i < len(parts); i++ {
		parts[i] = "*"
	}
	var query []string
	for key, values := range at.Query() {
		switch {
		case alike.MatchString(key):
			query = append(query, key)
		case (key == "kind" || key == "by") && at.Query().Has("tab"): // of a part of the page
		case key != "service" && key != "caller" && key != "peer":
			query = append(query, key+"="+values[0])
		}
	}
	slices.Sort(query)
	return strings.Join(parts, "/") + "?" + strings.Join(query, "&")
}

// inspect checks the look of a page in both languages.
func (b *browser) inspect(where string, english []string) {
	b.t.Helper()
	b.check(where)
	for _, language := range []string{"en", "zh"} {
		if b.value("document.documentElement.lang")[:2] != language {
			b.click(`button[title="EN / 中文"]`)
			b.until(fmt.Sprintf("document.documentElement.lang.startsWith(%q)", language))
			b.check(where)
		}
		b.look(where, language, english)
	}
	b.resize(1440, 900)
	b.click(`button[title="EN / 中文"]`)
	b.check(where)
}

// look checks a page in all windows. A window and a language decide which texts are cut off, and
// the colours decide which are faint. So look uses one of the colours for each window in English,
// and the other one in Chinese.
func (b *browser) look(where, language string, english []string) {
	b.t.Helper()
	texts := []string{}
	if language == "zh" {
		texts = english
	}
	shots := os.Getenv("YODEL_SHOTS") != ""
	for _, at := range []struct {
		width           int
		theme, language string
	}{
		{1440, "light", "en"}, {720, "dark", "en"}, {400, "light", "en"}, {400, "dark", "zh"}, {720, "light", "zh"}, {1440, "dark", "zh"},
	} {
		if at.language != language && !shots {
			continue
		}
		b.resize(at.width, 900)
		var found []string
		must(b.t, json.Unmarshal([]byte(b.eval(fmt.Sprintf("document.documentElement.dataset.theme = %q, (%s)(%s)", at.theme, defects, quoted(b.t, texts)))), &found))
		for _, one := range found {
			b.t.Errorf("%s at %d px, %s, %s: %s", where, at.width, at.theme, language, one)
		}
		if shots && at.width != 720 {
			name := regexp.MustCompile(`[^\w.]+`).ReplaceAllString(strings.ReplaceAll(where, url.PathEscape(longName), "LONG"), "_")
			b.shootAt(fmt.Sprintf("%.100s-%d-%s-%s", name, at.width, language, at.theme), at.width, int(b.timing("Math.min(2400, document.documentElement.scrollHeight)")))
		}
	}
}

// follow returns the addresses to which the links, rows and tabs of a page lead.
func (b *browser) follow() (addresses []string) {
	b.t.Helper()
	must(b.t, json.Unmarshal([]byte(b.eval(`(() => {
		const links = [...document.querySelectorAll("#app a[href], [data-to]")].map((e) => e.dataset.to ?? e.pathname + e.search);
		const here = location.href;
		for (const tab of document.querySelectorAll("main [role=tab]")) {
			history.replaceState(null, "", here);
			tab.click();
			links.push(location.pathname + location.search);
		}
		return links;
	})()`)), &addresses))
	return addresses
}

// Every page can be read in windows of 1440, 720 and 400 pixels, light and dark, in English and
// Chinese: nothing is cut off or faint, and all is in the language of the page. 720 pixels are 1440
// at 200 %. The pages are those to which the links, tabs and rows of other pages lead, so a new one
// is among them.
func TestBrowserPagesCanBeRead(t *testing.T) {
	b := newBrowser(t)
	s, c, fails := newTroubledFleet(t, &Options{Logger: slog.New(slog.DiscardHandler)})
	base := serveConsole(t, c)
	b.enter(c, base, longName)
	stock, english, seen := s.addrs["Stock"], catalogue(t), make(map[string]bool)
	open := []string{
		"/", "/services/Stock/" + stock[0], "/services/Stock/" + stock[1], "/rules?service=Stock&rule=Stock/try", "/rules?service=" + url.QueryEscape(longName),
		"/services/" + url.PathEscape(longName) + "?tab=instances", "/services/Empty?tab=instances", "/services/Stock?tab=instances", "/services/shop.Pay", "/samples?service=Stock",
	}
	fixed := len(open)
	for i := 0; i < len(open); i++ {
		path := open[i]
		shape := shapeOf(t, path)
		if i >= fixed && seen[shape] {
			continue
		}
		seen[shape] = true
		b.open(base+path, "yodel")
		b.inspect(path, english)
		open = append(open, b.follow()...)
	}
	for _, screen := range screens {
		if !seen[screen+"?"] {
			t.Errorf("no link leads to the screen %q", screen)
		}
	}
	b.open(base+"/topology", "Stock")
	b.until("document.querySelectorAll('.map .box.bad').length === 4") // the services that are down
	fails.Store(true)
	b.open(base+"/", "The registry does not answer")
	b.inspect("the registry does not answer", english)
	b.do("Network.clearBrowserCookies", nil, nil)
	for language, want := range map[string]string{"en": "You are not logged in", "zh": "您尚未登录"} {
		b.eval(fmt.Sprintf("localStorage.setItem('yodel-language', %q)", language))
		b.open(base+"/", want)
		b.look("login", language, english)
	}
}
