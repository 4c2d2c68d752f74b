// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/registry/memory"
)

const adminToken = "admin-0123456789-0123456789-0123456789"

// request is a request to a console, as a browser or a program sends it.
type request struct {
	method, path, body string
	header             map[string]string
}

// send sends a request and returns the status, the header and the body.
func (r request) send(t *testing.T, base string) (int, http.Header, string) {
	t.Helper()
	method := r.method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), method, base+r.path, strings.NewReader(r.body))
	must(t, err)
	for k, v := range r.header {
		if k == "Host" {
			req.Host = v
		}
		req.Header.Set(k, v)
	}
	res, err := client.Do(req)
	must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(t, err)
	return res.StatusCode, res.Header, string(body)
}

// login opens a login link, and returns the header of the requests of a page.
func login(t *testing.T, c *Console, base string, user User) map[string]string {
	t.Helper()
	_, token, _ := strings.Cut(c.LoginLink(user), "#login=")
	status, header, body := request{
		method: "POST", path: "/api/login", body: fmt.Sprintf(`{"token":%q}`, token),
		header: map[string]string{"Content-Type": "application/json", "Origin": base},
	}.send(t, base)
	cookie := header.Get("Set-Cookie")
	if status != http.StatusOK || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") {
		t.Fatalf("login: got %d %s, cookie %q", status, body, cookie)
	}
	cookie, _, _ = strings.Cut(cookie, ";")
	as := map[string]string{"Cookie": cookie, "Content-Type": "application/json", "Origin": base}
	_, _, body = request{path: "/api/me", header: as}.send(t, base)
	var me struct{ Csrf string }
	must(t, json.Unmarshal([]byte(body), &me))
	as[csrfName] = me.Csrf
	return as
}

func TestConsoleRefusesCallersWithoutRole(t *testing.T) {
	s := newShop(t)
	c := newConsole(t, s, &Options{Tokens: map[string]User{adminToken: {"ci", Admin}}, Authenticate: func(r *http.Request) User {
		return User{"proxy", map[string]Role{"viewer": Viewer, "operator": Operator}[r.Header.Get("X-Role")]}
	}})
	base := serveConsole(t, c)
	reads := []string{"me", "pulse", "overview", "service", "instance", "graph", "samples", "methods", "registry", "audit", "checks", "rules", "rules/forms", "rules/history", "rules/applied"}
	changes := []string{"instance", "call", "rules/preview", "rules/put", "rules/remove", "rules/rollback"}
	json := map[string]string{"Content-Type": "application/json", "Origin": base}
	with := func(k, v string) map[string]string {
		out := maps.Clone(json)
		out[k] = v
		return out
	}
	for _, path := range reads {
		for name, header := range map[string]map[string]string{"nobody": {}, "a wrong token": {"Authorization": "Bearer nonsense"}, "a wrong cookie": {"Cookie": "yodel-console-1=x"}} {
			if status, _, body := (request{path: "/api/" + path, header: header}).send(t, base); status != http.StatusUnauthorized {
				t.Errorf("%s reads %s: got %d %s, want 401", name, path, status, body)
			}
		}
		if status, _, _ := (request{path: "/api/" + path + "?service=Stock", header: with("X-Role", "viewer")}).send(t, base); status == http.StatusUnauthorized || status == http.StatusForbidden {
			t.Errorf("a viewer reads %s: got %d", path, status)
		}
	}
	for _, path := range changes {
		if status, _, _ := (request{method: "POST", path: "/api/" + path, body: "{}", header: json}).send(t, base); status != http.StatusUnauthorized {
			t.Errorf("nobody changes %s: got %d, want 401", path, status)
		}
		if status, _, _ := (request{method: "POST", path: "/api/" + path, body: "{}", header: with("X-Role", "viewer")}).send(t, base); status != http.StatusForbidden {
			t.Errorf("a viewer changes %s: got %d, want 403", path, status)
		}
		if status, _, _ := (request{path: "/api/" + path, header: with("X-Role", "operator")}).send(t, base); path != "instance" && status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			t.Errorf("GET of the change %s: got %d, want 404 or 405", path, status)
		}
	}
	if status, _, _ := (request{path: "/api/tap?service=Stock", header: with("X-Role", "viewer")}).send(t, base); status != http.StatusForbidden {
		t.Errorf("a viewer taps: got %d, want 403", status)
	}
	if status, _, _ := (request{method: "POST", path: "/api/invite", body: `{"name":"eve","role":"admin"}`, header: with("X-Role", "operator")}).send(t, base); status != http.StatusForbidden {
		t.Errorf("an operator invites: got %d, want 403", status)
	}
	if status, _, body := (request{method: "POST", path: "/api/invite", body: `{"name":"eve","role":"viewer"}`, header: with("Authorization", "Bearer "+adminToken)}).send(t, base); status != http.StatusOK {
		t.Errorf("an admin invites: got %d %s, want 200", status, body)
	}
	if status, _, body := (request{path: "/"}).send(t, base); status != http.StatusUnauthorized || !strings.Contains(body, "log in first") {
		t.Errorf("curl without a role: got %d %s", status, body)
	}
}

func TestConsoleRefusesForgedRequests(t *testing.T) {
	s := newShop(t)
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Operator})
	body := fmt.Sprintf(`{"service":"Stock","addr":%q,"state":"inactive","reason":"test"}`, s.addrs["Stock"][0])
	change := func(edit func(h map[string]string)) int {
		h := maps.Clone(as)
		edit(h)
		status, _, _ := request{method: "POST", path: "/api/instance", body: body, header: h}.send(t, base)
		return status
	}
	for name, edit := range map[string]func(h map[string]string){
		"another origin":       func(h map[string]string) { h["Origin"] = "http://evil.example" },
		"no origin":            func(h map[string]string) { delete(h, "Origin") },
		"the origin null":      func(h map[string]string) { h["Origin"] = "null" },
		"another port":         func(h map[string]string) { h["Origin"] = "http://127.0.0.1:1" },
		"no CSRF token":        func(h map[string]string) { delete(h, csrfName) },
		"a wrong CSRF token":   func(h map[string]string) { h[csrfName] = "x" },
		"a form":               func(h map[string]string) { h["Content-Type"] = "application/x-www-form-urlencoded" },
		"plain text":           func(h map[string]string) { h["Content-Type"] = "text/plain" },
		"a cross-site fetch":   func(h map[string]string) { h["Sec-Fetch-Site"] = "cross-site" },
		"a fetch of same site": func(h map[string]string) { h["Sec-Fetch-Site"] = "same-site" },
	} {
		if status := change(edit); status != http.StatusForbidden {
			t.Errorf("a change with %s: got %d, want 403", name, status)
		}
	}
	eventually(t, "a change of the page itself is made", func() bool { return change(func(map[string]string) {}) == http.StatusOK })
	for _, host := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", ""} {
		if status, _, _ := (request{path: "/api/me", header: map[string]string{"Host": host, "Cookie": as["Cookie"]}}).send(t, base); host != "" && status != http.StatusMisdirectedRequest {
			t.Errorf("Host %q: got %d, want 421", host, status)
		}
	}
}

func TestConsoleRefusesPathTricks(t *testing.T) {
	c := newConsole(t, newShop(t), &Options{Tokens: map[string]User{adminToken: {"ci", Admin}}})
	base := serveConsole(t, c)
	at, err := url.Parse(base)
	must(t, err)
	for _, path := range []string{
		"/../console.go", "/assets/../console.go", "/assets/%2e%2e/index.html", "/assets/..%2findex.html", "/assets/%2fetc%2fpasswd", "//assets/app.js",
		"/assets//app.js", "/assets/./app.js", "/assets/app.js%00", "/assets\\app.js", "/assets/..\\..\\go.mod", "/api/../api/me", "/api//me", "/assets/index.html",
		"/assets/", "/.git/config", "/web/dist/app.js", "/services/a/b/c", "/services/%2e%2e/x", "/assets/%252e%252e/x", "/" + strings.Repeat("a", 5000),
	} {
		// A client of package net/http would clean the path.
		conn, err := net.Dial("tcp", at.Host)
		must(t, err)
		_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: text/html\r\nConnection: close\r\n\r\n", path, at.Host, adminToken)
		must(t, err)
		answer, err := io.ReadAll(conn)
		conn.Close()
		must(t, err)
		line, _, _ := strings.Cut(string(answer), "\r\n")
		if !strings.Contains(line, " 400 ") && !strings.Contains(line, " 404 ") && !strings.Contains(line, " 301 ") && !strings.Contains(line, " 307 ") {
			t.Errorf("GET %.60s: got %q, want 400 or 404", path, line)
		}
		if strings.Contains(string(answer), "package console") || strings.Contains(string(answer), "root:x") {
			t.Errorf("GET %s returns a file", path)
		}
	}
}

func TestTenThousandBadLoginsAreRefused(t *testing.T) {
	var log bytes.Buffer
	c := newConsole(t, newShop(t), &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	base := serveConsole(t, c)
	link := c.LoginLink(User{"ann", Admin})
	counts := map[int]int{}
	for i := range 10_000 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/api/login", strings.NewReader(fmt.Sprintf(`{"token":"guess%d"}`, i)))
		must(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Origin", base)
		req.RemoteAddr = "127.0.0.1:1"
		w := newRecorder()
		c.ServeHTTP(w, req)
		counts[w.status]++
	}
	if counts[http.StatusUnauthorized] > 10*maxBad || counts[http.StatusUnauthorized]+counts[http.StatusTooManyRequests] != 10_000 {
		t.Errorf("got %v, want at most %d times 401 in a minute, and else 429", counts, maxBad)
	}
	if entries, _ := c.audit.list(); len(entries) > 10*maxBad {
		t.Errorf("the audit log has %d entries of bad logins", len(entries))
	}
	if strings.Contains(log.String(), "guess") || strings.Contains(log.String(), strings.TrimPrefix(link, "/#login=")) {
		t.Error("the log has a token")
	}
	login := func() int {
		status, _, _ := request{
			method: "POST", path: "/api/login", body: fmt.Sprintf(`{"token":%q}`, strings.TrimPrefix(link, "/#login=")),
			header: map[string]string{"Content-Type": "application/json", "Origin": base},
		}.send(t, base)
		return status
	}
	// Bad logins do not keep others out.
	if first, second := login(), login(); first != http.StatusOK || second != http.StatusTooManyRequests {
		t.Errorf("the same link twice: got %d and %d, want 200 and 429", first, second)
	}
	// The limit ends.
	c.doors.badUntil = c.started
	if third := login(); third != http.StatusUnauthorized {
		t.Errorf("the same link later: got %d, want 401", third)
	}
}

// recorder is a ResponseWriter that keeps the status.
type recorder struct {
	status int
	header http.Header
}

func newRecorder() *recorder { return &recorder{status: http.StatusOK, header: make(http.Header)} }

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(status int)      { r.status = status }

func TestAuditLogHasEveryChangeAndNoSecret(t *testing.T) {
	s := newShop(t)
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	var log bytes.Buffer
	c := newConsole(t, s, &Options{Audit: file, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Admin})
	post := func(path, body string) (int, string) {
		status, _, answer := request{method: "POST", path: "/api/" + path, body: body, header: as}.send(t, base)
		return status, answer
	}
	eventually(t, "the methods are known", func() bool {
		status, _ := post("call", `{"service":"Mail","method":"Mail.Send","args":["s3cret-argument"]}`)
		return status == http.StatusOK
	})
	for _, change := range []struct{ path, body string }{
		{"instance", fmt.Sprintf(`{"service":"Stock","addr":%q,"weight":5,"reason":"slow disk"}`, s.addrs["Stock"][0])},
		{"rules/put", `{"service":"Stock","limit":{"perSecond":50},"reason":"too many calls"}`},
		{"invite", `{"name":"bob","role":"viewer"}`},
	} {
		if status, answer := post(change.path, change.body); status != http.StatusOK {
			t.Fatalf("%s: got %d %s", change.path, status, answer)
		}
	}
	if status, answer := post("rules/rollback", `{"service":"Stock","revision":0,"reason":"it was too low"}`); status != http.StatusOK {
		t.Fatalf("rollback: got %d %s", status, answer)
	}
	if status, _ := post("logout", `{}`); status != http.StatusOK {
		t.Fatal("logout failed")
	}
	text, err := os.ReadFile(file)
	must(t, err)
	for _, want := range []string{
		`"user":"ann","role":"admin"`, `"action":"login"`, `"action":"call","object":"Mail.Send"`, `"action":"instance"`, `"after":"weight 5"`, `"reason":"slow disk"`,
		`"action":"rule"`, `"reason":"too many calls"`, `"action":"invite","object":"bob"`, `"action":"rollback","object":"Stock to revision 0","before":"Limit`, `"after":"no rules","reason":"it was too low"`, `"action":"logout"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the audit log lacks %s", want)
		}
	}
	_, session, _ := strings.Cut(as["Cookie"], "=")
	for _, secret := range []string{session, as[csrfName], "s3cret-argument"} {
		if strings.Contains(string(text), secret) || strings.Contains(log.String(), secret) {
			t.Errorf("a log has a secret: %s", secret)
		}
	}
	again, err := openAudit(file, slog.New(slog.DiscardHandler))
	must(t, err)
	defer again.close()
	if entries, _ := again.list(); len(entries) < 7 || entries[0].Action != "logout" {
		t.Errorf("after a restart the log has %d entries", len(entries))
	}
}

func TestReadOnlyConsoleRefusesChanges(t *testing.T) {
	c := newConsole(t, newShop(t), &Options{ReadOnly: true})
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Admin})
	for _, path := range []string{"instance", "call", "rules/put", "rules/remove", "rules/rollback", "invite"} {
		if status, _, body := (request{method: "POST", path: "/api/" + path, body: "{}", header: as}).send(t, base); status != http.StatusForbidden || !strings.Contains(body, "read-only") {
			t.Errorf("%s: got %d %s, want 403", path, status, body)
		}
	}
}

func TestHeadersKeepPagesSafe(t *testing.T) {
	c := newConsole(t, newShop(t), nil)
	base := serveConsole(t, c)
	for _, path := range []string{"/", "/services/Stock", "/assets/app.js", "/api/me"} {
		_, h, body := request{path: path, header: map[string]string{"Accept": "text/html"}}.send(t, base)
		csp := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; style-src 'self'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: Content-Security-Policy is %q", path, csp)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" || h.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: headers are missing: %v", path, h)
		}
		if path == "/" && (strings.Contains(body, "http:") || strings.Contains(body, "https:") || strings.Contains(body, "{root}")) {
			t.Errorf("the page refers to other hosts, or to no folder: %s", body)
		}
	}
}

// A browser that has the script already does not load it again.
func TestBrowsersKeepTheFrontEnd(t *testing.T) {
	base := serveConsole(t, newConsole(t, &shop{registry: memory.New(nil)}, nil))
	_, h, _ := request{path: "/assets/app.js"}.send(t, base)
	for tag, want := range map[string]int{h.Get("ETag"): http.StatusNotModified, `"another"`: http.StatusOK} {
		if status, _, body := (request{path: "/assets/app.js", header: map[string]string{"If-None-Match": tag}}).send(t, base); status != want || (body == "") != (want == http.StatusNotModified) {
			t.Errorf("with the tag %s: got %d and %d bytes, want %d", tag, status, len(body), want)
		}
	}
}

func TestNewRefusesShortTokens(t *testing.T) {
	if _, err := New(memory.New(nil), &Options{Tokens: map[string]User{"short": {"ci", Admin}}}); err == nil {
		t.Error("a short token was taken")
	}
	if _, err := New(nil, nil); err == nil {
		t.Error("a console without a source was made")
	}
}
