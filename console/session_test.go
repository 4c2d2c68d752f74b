// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
)

// A login in another tab, and a login link that was used before, do no harm to a session.
func TestBrowserKeepsItsSession(t *testing.T) {
	b := newBrowser(t)
	s := newShop(t)
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	link := base + c.LoginLink(User{"ann", Operator})
	b.open(link, "Stock")
	b.do("Page.navigate", map[string]any{"url": "about:blank"}, nil)
	b.open(link, "services")
	b.mu.Lock()
	b.faults = nil // the status 401 of the link
	b.mu.Unlock()
	_, token, _ := strings.Cut(c.LoginLink(User{"ann", Operator}), "#login=")
	b.open(base+"/services/Mail?tab=instances", "Set state, weight")
	b.eval(fmt.Sprintf(`fetch("/api/login", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token: %q }) }).then(r => r.text())`, token))
	b.click("tbody button")
	b.waitFor("0: its own")
	b.fill("[name=weight]", "7")
	b.fill("form.panel input:not([name])", "strong")
	b.click("form.panel [type=submit]")
	b.until("!document.querySelector('form.panel')")
	b.mu.Lock()
	b.faults = nil // the status 403 of the session before
	b.mu.Unlock()
	b.click("#logout")
	b.waitFor("You are not logged in")
	// The second login was refused.
	if got := actions(c); got != "login > login > login > instance > logout" {
		t.Errorf("the audit log has %s", got)
	}
}

// Pages say why they show nothing, and not that there is nothing.
func TestBrowserSaysWhatItDoesNotKnow(t *testing.T) {
	b := newBrowser(t)
	s := newShop(t)
	must(t, s.registry.Announce(t.Context(), "Gone", discovery.Instance{Addr: "127.0.0.1:1"}, 0))
	r := &flaky{Registry: s.registry}
	c, err := New(r, &Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	base := serveConsole(t, c)
	b.enter(c, base, "Gone")
	b.open(base+"/services/Gone/127.0.0.1:1", "its connections are not known")
	b.check("instance that is down")

	r.failing.Store(true)
	c, err = New(r, &Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	base = serveConsole(t, c)
	b.enter(c, base, "cannot be read")
	b.press("/")
	b.write("x")
	b.until("document.querySelector('.search li').innerText.includes('cannot be read')")
	b.open(base+"/registry", "connection refused")
	if text := b.text(); strings.Contains(text, "has no instances") {
		t.Errorf("the page says that the registry is empty:\n%s", text)
	}
}

// Durations and numbers have no exponents, and things are counted in words that fit.
func TestBrowserWritesNumbers(t *testing.T) {
	b := newBrowser(t)
	c := newStreet(t)
	base := serveConsole(t, c)
	b.enter(c, base, "3 services are healthy, 0 rules active")
	began := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	b.open(base+"/samples", "No records of this kind")
	for took, want := range map[time.Duration]string{22 * time.Hour: "A.B ● ok 22 h", 59 * time.Minute: "A.B ● ok 59 min", 100 * 24 * time.Hour: "A.B ● ok 100 d", 1500 * time.Microsecond: "A.B ● ok 1.5 ms"} {
		b.eval(fmt.Sprintf(`(e => {
			const files = new DataTransfer();
			files.items.add(new File([%q], "sample.json"));
			e.files = files.files;
			e.dispatchEvent(new Event("change", { bubbles: true }));
		})(document.querySelector("main input[type=file]"))`, fmt.Sprintf(`{"method":"A.B","side":"server","began":%q,"took":%d}`, began, took)))
		b.waitFor(want)
	}
	for _, one := range []struct {
		services, rules int
		err, want       string
	}{
		{1, 1, "", "1 service is healthy. 1 rule is active."},
		{2, 0, "", "2 services are healthy. 0 rules are active."},
		{1, 0, "gone", "The registry does not answer: 1 service that it named before, as of "},
	} {
		v, out := &overview{Rules: one.rules, Err: one.err}, &bytes.Buffer{}
		for range one.services {
			v.Services = append(v.Services, &serviceView{})
		}
		if textOverview(out, v); !strings.HasPrefix(out.String(), one.want) {
			t.Errorf("%d services: got %s", one.services, out)
		}
	}
}
