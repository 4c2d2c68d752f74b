// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// click clicks the first element that matches a selector.
func (b *browser) click(selector string) {
	b.t.Helper()
	b.until(fmt.Sprintf("!!document.querySelector(%q)", selector))
	b.eval(fmt.Sprintf("document.querySelector(%q).click()", selector))
}

// fill replaces the text of a field, as an input method or a paste does: at once, with one event.
func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("!!document.querySelector(%q)", selector))
	b.eval(fmt.Sprintf("(e => { e.focus(); e.select(); })(document.querySelector(%q))", selector))
	if text == "" {
		b.eval("document.execCommand('delete')")
		return
	}
	b.do("Input.insertText", map[string]any{"text": text}, nil)
}

// pick chooses an option of a list.
func (b *browser) pick(selector, value string) {
	b.t.Helper()
	b.until(fmt.Sprintf("!!document.querySelector(%q)", selector))
	b.eval(fmt.Sprintf("(e => { e.value = %q; e.dispatchEvent(new Event('change', { bubbles: true })); })(document.querySelector(%q))", value, selector))
}

// newBrowserOf starts a browser in which an admin has logged in to a console of the shop.
func newBrowserOf(t *testing.T, o *Options) (b *browser, s *shop, c *Console, base string) {
	t.Helper()
	b = newBrowser(t)
	s = newShop(t)
	c = newConsole(t, s, o)
	base = serveConsole(t, c)
	b.enter(c, base, "Stock")
	return b, s, c, base
}

// actions returns what the audit log has, the oldest first.
func actions(c *Console) string {
	var all []string
	entries, _ := c.audit.list()
	for i := range entries {
		all = append([]string{entries[i].Action}, all...)
	}
	return strings.Join(all, " > ")
}

// The tabs of a form show its parts and send nothing.
func TestBrowserTabsSendNoForm(t *testing.T) {
	b, _, c, base := newBrowserOf(t, nil)
	for path, want := range map[string]string{"/call?service=Stock&method=Stock.Reserve&mode=form": "item", "/rules?new=limit&service=Stock": "Calls per second"} {
		b.open(base+path, want)
		if strings.HasPrefix(path, "/rules") {
			b.fill("[name=reason]", "a test")
		}
		b.click("form [role=tab]:last-child")
		b.until("document.querySelector('form [role=tab]:last-child').ariaSelected === 'true' && !!document.querySelector('form textarea')")
		b.check(path)
	}
	b.open(base+"/audit", "login") // a form that was sent would be here
	if got := actions(c); got != "login" {
		t.Errorf("the tabs have sent forms: %s", got)
	}
}

// The form that sets an instance has the values of the instance for which it was opened last.
func TestBrowserSetsTheInstanceThatWasChosen(t *testing.T) {
	b, _, _, base := newBrowserOf(t, nil)
	b.open(base+"/services/Stock?tab=instances", "Set state, weight")
	b.click("tbody tr:nth-child(1) button")
	b.waitFor("0: its own")
	b.fill("[name=weight]", "7")
	first := b.eval("document.querySelector('form.panel h2').innerText")
	b.click("tbody tr:nth-child(2) button")
	b.until("document.querySelector('form.panel h2').innerText !== " + first)
	if got := b.eval("document.querySelector('[name=weight]').value"); got != `"0"` {
		t.Errorf("the weight typed for one instance is that of another: %s", got)
	}
}

// The form of a rule changes what the user has changed, and nothing else.
func TestBrowserEditsARule(t *testing.T) {
	expires := time.Now().Add(40 * 24 * time.Hour).Truncate(time.Second)
	day, later := expires.Format(time.RFC3339), expires.Add(time.Hour).Format(time.RFC3339)
	b, s, c, base := newBrowserOf(t, nil)
	as := login(t, c, base, User{"ann", Operator})
	book, err := rules.Open(s.registry)
	must(t, err)
	for _, one := range []struct {
		name, rule string
		change     func(b *browser)
		want       string
	}{
		{"only a number", `"limit":{"perSecond":1000},"expires":"` + day + `"`, func(b *browser) { b.fill(`[name="perSecond"]`, "2000.05") }, "2000.05 false " + day},
		{"never expires", `"limit":{"perSecond":1000},"expires":"` + day + `"`, func(b *browser) { b.pick("[name=life]", "never") }, "1000 false never"},
		{"keep never", `"limit":{"perSecond":1000}`, func(b *browser) { b.fill(`[name="perSecond"]`, "3000") }, "3000 false never"},
		{"expires as JSON", `"limit":{"perSecond":1000}`, func(b *browser) {
			b.click("form [role=tab]:last-child")
			b.until("!!document.querySelector('form textarea')")
			b.fill("form textarea", "null")
			b.waitFor("A rule is a JSON object")
			b.fill("form textarea", `{"service":"Stock","id":"r","limit":{"perSecond":1000},"expires":"`+later+`"}`)
		}, "1000 false " + later},
		{"switch on", `"limit":{"perSecond":1000},"off":true`, func(b *browser) { b.click("[name=off]") }, "1000 false never"},
		{"clear all fields", `"limit":{"perSecond":1000}`, func(b *browser) {
			b.fill(`[name="perSecond"]`, "")
			b.until(`document.querySelector('form [type=submit]').disabled`)
			b.fill(`[name="concurrent"]`, "5")
		}, "0 false never"},
		{"who calls", `"limit":{"perSecond":1000}`, func(b *browser) {
			b.fill(`[name="network"]`, "10.0.0.0/8")
			b.fill(`[name="identity"]`, "subject=ann, claim:role=admin")
		}, "1000 false never 10.0.0.0/8 map[claim:role:admin subject:ann]"},
	} {
		status, _, body := request{method: "POST", path: "/api/rules/put", body: `{"service":"Stock","id":"r","reason":"x",` + one.rule + `}`, header: as}.send(t, base)
		if status != http.StatusOK {
			t.Fatal(body)
		}
		b.open(base+"/rules?service=Stock&edit=r", "An estimate")
		if b.eval("document.querySelector('[name=service]').disabled") != "true" {
			t.Error("the service of a rule can be changed, which would copy the rule")
		}
		one.change(b)
		b.fill("[name=reason]", one.name)
		b.until("!document.querySelector('form [type=submit]').disabled")
		b.click("form [type=submit]")
		b.waitFor(one.name)
		list, err := book.List(t.Context(), "Stock")
		must(t, err)
		if len(list) != 1 || list[0].Reason != one.name {
			t.Fatalf("%s: the rules are %+v", one.name, list)
		}
		until := "never"
		if !list[0].Expires.IsZero() {
			until = list[0].Expires.Local().Format(time.RFC3339)
		}
		got := fmt.Sprint(list[0].Limit.PerSecond, " ", list[0].Off, " ", until)
		if list[0].Network != "" {
			got += fmt.Sprint(" ", list[0].Network, " ", list[0].Identity)
		}
		if got != one.want {
			t.Errorf("%s: the rule is %s, want %s", one.name, got, one.want)
		}
		b.check(one.name)
	}
}

// The form of each kind of rule asks for the fields of the kind, and begins as the kind says.
func TestBrowserAsksForTheFieldsOfEachKind(t *testing.T) {
	b, _, _, base := newBrowserOf(t, nil)
	for _, form := range rules.Forms() {
		b.open(base+"/rules?service=Stock&new="+form.Kind, "What")
		b.until("!!document.querySelector('form.rule [name=reason]')")
		want := []string{"service"}
		for _, field := range form.Fields {
			want = append(want, field.Path)
		}
		if form.Scope {
			want = append(want, "method", "caller", "tenant", "network", "header", "identity")
		}
		got := b.value("[...document.querySelectorAll('form.rule section:first-child [name]')].map((f) => f.name).join(' ')")
		if got != strings.Join(want, " ") {
			t.Errorf("the form of %s asks for %s, want %v", form.Kind, got, want)
		}
		life := "never"
		if form.Ends {
			life = "24h"
		}
		if got := b.value("document.querySelector('[name=life]').value"); got != life {
			t.Errorf("a rule of the kind %s expires after %s, want %s", form.Kind, got, life)
		}
		if got := b.value("document.querySelector('[name=percent]')?.value ?? ''"); got == "" && strings.Contains(string(form.Start), "percent") {
			t.Errorf("the form of %s does not begin with %s", form.Kind, form.Start)
		}
	}
	b.open(base+"/rules?service=Stock&new=nothing", "There is no rule of the kind nothing")
}

// A double click on a button changes once.
func TestBrowserSendsAFormOnce(t *testing.T) {
	b, _, c, base := newBrowserOf(t, nil)
	as := login(t, c, base, User{"ann", Operator})
	for _, n := range []int{5000, 6000} {
		status, _, body := request{method: "POST", path: "/api/rules/put", body: fmt.Sprintf(`{"service":"Stock","id":"r","reason":"x","limit":{"perSecond":%d}}`, n), header: as}.send(t, base)
		if status != http.StatusOK {
			t.Fatal(body)
		}
	}
	b.open(base+"/rules?service=Stock", "Undo")
	b.click("[data-undo='1']")
	b.waitFor("Later changes")
	b.until("document.activeElement.name === 'undoreason'")
	b.write("once")
	b.eval("for (let i = 0; i < 2; i++) document.querySelector('.history [type=submit]').click()")
	b.waitFor("No rules")
	if got := actions(c); got != "login > login > rule > rule > rollback" {
		t.Errorf("the audit log has %s", got)
	}
	b.check("undo")
}

// The form below a rule is that of the rule which was opened last, and the kinds have names.
func TestBrowserRemovesTheRuleThatWasChosen(t *testing.T) {
	b, _, c, base := newBrowserOf(t, nil)
	as := login(t, c, base, User{"ann", Operator})
	for _, id := range []string{"a", "b"} {
		status, _, body := request{method: "POST", path: "/api/rules/put", body: fmt.Sprintf(`{"service":"Stock","id":%q,"reason":"x","limit":{"perSecond":5000}}`, id), header: as}.send(t, base)
		if status != http.StatusOK {
			t.Fatal(body)
		}
	}
	b.eval("localStorage.setItem('yodel-language', 'zh')")
	b.open(base+"/rules?service=Stock&rule=Stock/a", "Stock / a")
	if got := b.value("document.querySelector('main td').innerText"); got != "限流" {
		t.Errorf("the kind is %s", got)
	}
	b.fill("section.panel form input", "of a")
	b.click("main tbody tr:nth-child(2)")
	b.waitFor("Stock / b")
	if got := b.value("document.querySelector('section.panel form input').value"); got != "" {
		t.Errorf("the reason for b is %q", got)
	}
	b.check("rules")
}

// A viewer gets no form of a rule, and an admin of a console that is read-only no invitation.
func TestBrowserOffersNoRefusedForm(t *testing.T) {
	b, _, _, base := newBrowserOf(t, &Options{ReadOnly: true})
	for path, want := range map[string]string{"/rules?new=limit&service=Stock": "No rules", "/audit": "login"} {
		b.open(base+path, want)
		if got := b.eval("document.querySelectorAll('main form').length"); got != "0" {
			t.Errorf("%s has %s forms", path, got)
		}
		b.check(path)
	}
}

// wide is an argument and a reply with an integer that JavaScript cannot represent.
type wide struct {
	ID    int64          `json:"id"`
	Price float64        `json:"price"`
	Item  string         `json:"item"`
	More  map[string]int `json:"more,omitempty"`
}

const widest = "9007199254740993"

// The call tester sends the numbers that were typed, offers the same to copy, and shows those that
// came back.
func TestBrowserCallsWithTheNumbersThatWereTyped(t *testing.T) {
	b := newBrowser(t)
	s := &shop{registry: memory.New(nil), addrs: make(map[string][]string)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.serve(ctx, t, s.registry, "Wide", "v1", func(server *yodel.Server) error {
		return server.Handle("Wide.Echo", func(w *wide) (*wide, error) { return w, nil })
	})
	s.serve(ctx, t, s.registry, "Count", "v1", counter)
	c := newConsole(t, s, nil)
	b.enter(c, serveConsole(t, c), "Wide")
	base := b.value("location.origin")
	for _, one := range []struct {
		method, mode, want string
		change             func()
	}{
		{"Wide.Echo", "json", `"id": ` + widest, func() { b.fill("form textarea", `{"id":`+widest+`,"item":"a"}`) }},
		{"Wide.Echo", "form", `"id": ` + widest, func() { b.fill("[name=item]", "b") }}, // the number of the last call
		{"Wide.Echo", "form", `"price": 1.05`, func() { b.fill("[name=price]", "1.05") }},
		{"Count.Double", "json", "18014398509481986", func() { b.fill("form textarea", "["+widest+"]") }},
	} {
		service, _, _ := strings.Cut(one.method, ".")
		b.open(base+"/call?service="+service+"&method="+one.method+"&mode="+one.mode, "Nothing sent yet")
		one.change()
		if got := b.value("document.querySelector('form [data-cli]').title"); service == "Wide" && !strings.Contains(got, strings.ReplaceAll(one.want, " ", "")) {
			t.Errorf("%s: the command is %s, want %s", one.method, got, one.want)
		}
		b.click("form [type=submit]")
		b.waitFor(one.want)
		b.check(one.method)
	}
	// A field that is not JSON is not sent. An earlier call fills every field.
	b.open(base+"/call?service=Wide&method=Wide.Echo&mode=form", "Nothing sent yet")
	b.fill("[name=more]", `{"a":`)
	b.waitFor("This is not JSON yet")
	if got := b.eval("document.querySelector('form [type=submit]').disabled"); got != "true" {
		t.Error("a call with a field that is not JSON can be sent")
	}
	b.fill("[name=more]", `{"a":1}`)
	b.pick("[name=past]", b.value("document.querySelector('[name=past] option:last-child').value"))
	b.until("document.querySelector('[name=more]').value === ''")
	if got := b.value("document.querySelector('[name=item]').value"); got != "a" {
		t.Errorf("the form has the item %q, want that of the earlier call", got)
	}
	// A command that has changed is not the one that was copied.
	b.eval("void (navigator.clipboard.writeText = async () => {})")
	b.click("form [data-cli]")
	b.until("document.querySelector('form [data-cli]').innerText === 'Copied'")
	b.fill("[name=item]", "c")
	b.until("document.querySelector('form [data-cli]').innerText === 'Copy as CLI'")
}

// value returns the value of an expression, which is a text.
func (b *browser) value(expression string) (s string) {
	b.t.Helper()
	must(b.t, json.Unmarshal([]byte(b.eval(expression)), &s))
	return s
}

// The form of a rule keeps the digits of the reply that it edits, as a field and as JSON.
func TestBrowserKeepsTheReplyOfARule(t *testing.T) {
	b, s, _, base := newBrowserOf(t, nil)
	book, err := rules.Open(s.registry)
	must(t, err)
	_, err = book.Put(t.Context(), rules.Rule{
		Service: "Stock", ID: "wide", Author: "ann", Reason: "a test", Mock: &rules.Answer{Reply: json.RawMessage(`{"id":` + widest + `,"price":1.0}`)},
	})
	must(t, err)
	for i, mode := range []string{"form", "json"} {
		b.open(base+"/rules?edit=wide&service=Stock", "Mock")
		if mode == "json" {
			b.click("form [role=tab]:last-child")
			b.until("document.querySelector('form textarea')?.value.includes('" + widest + "')")
		}
		b.fill("form textarea", strings.ReplaceAll(b.value("document.querySelector('form textarea').value"), "1.0", "2.0"))
		b.fill("[name=reason]", "a test of the "+mode)
		b.click("form.rule [type=submit]")
		eventually(t, "the rule is stored", func() bool {
			all, err := book.List(t.Context(), "Stock")
			must(t, err)
			return len(all) == 1 && all[0].Revision == i+2
		})
		all, err := book.List(t.Context(), "Stock")
		must(t, err)
		if got, want := string(all[0].Mock.Reply), `{"id":`+widest+`,"price":2.0}`; got != want {
			t.Errorf("%s: the reply is %s, want %s", mode, got, want)
		}
	}
}

// The pages say which records are not valid rules.
func TestBrowserNamesInvalidRules(t *testing.T) {
	b, s, _, base := newBrowserOf(t, nil)
	must(t, s.registry.Keep(t.Context(), "Stock", "rules", "broken", []byte("{")))
	for _, path := range []string{"/rules", "/services/Stock?tab=rules"} {
		b.open(base+path, "The record Stock/broken is not a valid rule")
		b.check(path)
	}
}

// A mute registry reads neither rules nor settings.
type mute struct{ *registry.Registry }

var errQuorum = errors.New("no quorum")

func (mute) KeptServices(context.Context, string) ([]string, error) { return nil, errQuorum }

func (m mute) Describe() yodel.Description {
	return yodel.Description{Overrides: func(string) discovery.Resolver { return mute{} }}.Over(m.Registry)
}

func (mute) Watch(context.Context, func([]discovery.Instance)) error { return errQuorum }

// The pages say that rules and settings cannot be read, and go on with what the registry has.
func TestBrowserSaysThatRulesAndSettingsCannotBeRead(t *testing.T) {
	b := newBrowser(t)
	s := newShop(t)
	c, err := New(mute{s.registry}, &Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	base := serveConsole(t, c)
	b.enter(c, base, "The rules cannot be read now: ")
	if headline := b.eval("document.querySelector('[data-headline]').innerText"); strings.Contains(headline, "does not answer") || strings.Contains(headline, "active") {
		t.Errorf("the headline is %s", headline)
	}
	for _, path := range []string{"/services/Stock", "/services/Stock/" + s.addrs["Stock"][0]} {
		b.open(base+path, "the settings of operators for Stock cannot be read")
	}
}
