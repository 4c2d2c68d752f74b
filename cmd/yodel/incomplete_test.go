// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// consulOf is Consul as a caller sees it: with the services Shop and Mail, and a rule of each. The
// names of lists are cut says that the caller may not read others. Unread is a service whose rules
// cannot be read.
func consulOf(t *testing.T, cut bool, unread string) (address string) {
	t.Helper()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Consul-Index", "1")
		var answer any = []string{}
		switch path := strings.TrimSuffix(r.URL.Path, "/"); {
		case r.URL.Query().Has("index"):
			<-r.Context().Done() // nothing changes
			return
		case path == "/v1/catalog/services":
			answer = map[string][]string{"Mail": {}, "Shop": {}}
			w.Header().Set("X-Consul-Results-Filtered-By-Acls", strconv.FormatBool(cut))
		case path == "/v1/kv/yodel-rules":
			answer = []string{"yodel-rules/Mail/", "yodel-rules/Shop/"}
			w.Header().Set("X-Consul-Results-Filtered-By-Acls", strconv.FormatBool(cut))
		case unread != "" && path == "/v1/kv/yodel-rules/"+unread:
			w.WriteHeader(http.StatusInternalServerError)
			return
		case strings.HasPrefix(path, "/v1/kv/yodel-rules/"):
			service := strings.TrimPrefix(path, "/v1/kv/yodel-rules/")
			rule, err := json.Marshal(rules.Rule{Schema: rules.Schema, ID: "slow", Service: service, Author: "ann", Reason: "x", Limit: &rules.Limit{PerSecond: 5}})
			if err != nil {
				t.Error(err)
			}
			answer = []map[string]string{{"Key": "yodel-rules/" + service + "/slow", "Value": base64.StdEncoding.EncodeToString(rule)}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(site.Close)
	at, err := url.Parse(site.URL)
	if err != nil {
		t.Fatal(err)
	}
	return "consul://" + at.Host
}

// A list of services or rules that the registry has given in part says so, on every door.
func TestListsThatAreNotCompleteSaySo(t *testing.T) {
	const cut = "is not complete"
	for name, test := range map[string]struct {
		cut                     bool
		unread                  string
		ls, ruleLs, rules, none string // what the commands say, the rules that are listed, and one that is not
		code                    int    // of yodel ls and yodel rule ls
	}{
		"complete":          {false, "", "", "", "Mail/slow Shop/slow", "Nothing", exitOK},
		"both lists cut":    {true, "", "the list of services is not complete: the token may not read what there is", "the list of rules is not complete: list the services with rules: the token may not read what there is", "Mail/slow Shop/slow", "Nothing", exitUnreachable},
		"rules of one fail": {false, "Mail", "the list of rules is not complete", "the list of rules is not complete, because the rules of 1 of 2 services cannot be read: read the rules of Mail", "Shop/slow", "Mail", exitUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "YODEL_REGISTRY": consulOf(t, test.cut, test.unread)}
			yodel := func(args ...string) result { return yodelWith(t.Context(), strings.NewReader(""), env, args...) }
			for _, args := range []string{"ls --all", "ls --all -o json", "ls --all -o ndjson", "ls --all -o yaml", "ls --all -o name"} {
				r := yodel(strings.Fields(args)...)
				if r.code != test.code || !strings.Contains(r.out, "Shop") || !strings.Contains(r.out, "Mail") || !strings.Contains(r.err, test.ls) || strings.Contains(r.err, cut) != (test.ls != "") {
					t.Errorf("yodel %s: got %d\n%s\n%s", args, r.code, r.out, r.err)
				}
			}
			var rows []serviceRow // a script gets the same list in both cases
			if r := yodel("ls", "--all", "-o", "json"); json.Unmarshal([]byte(r.out), &rows) != nil || len(rows) != 2 {
				t.Errorf("yodel ls -o json: got %s", r.out)
			}
			if r := yodel("ls", "--unhealthy"); strings.Contains(r.err, "No service") != (test.code == exitOK) {
				t.Errorf("yodel ls --unhealthy: got %d %s", r.code, r.err)
			}
			for _, args := range []string{"top -n 1 -o json", "events -o json", "samples -o json"} {
				r, want := yodel(strings.Fields(args)...), exitOK
				if test.cut { // they show no rules
					want = exitUnreachable
				}
				if r.code != want || strings.Contains(r.err, "the list of services "+cut) != test.cut || strings.Contains(r.err, "No call") == test.cut && strings.HasPrefix(args, "samples") {
					t.Errorf("yodel %s: got %d\n%s\n%s", args, r.code, r.out, r.err)
				}
			}
			r, want := yodel("describe", "127.0.0.1:1"), exitFailed
			if test.cut { // it may be one of a service that is not listed
				want = exitUnreachable
			}
			if r.code != want || strings.Contains(r.err, "not_found") == test.cut {
				t.Errorf("yodel describe HOST:PORT: got %d %s", r.code, r.err)
			}
			if r := yodel("ls", "--all"); strings.Count(r.out, "limit") != strings.Count(test.rules, "slow") {
				t.Errorf("the rules of yodel ls: got\n%s", r.out)
			}
			for _, args := range []string{"rule ls -o name", "rule ls -o json", "rule ls"} {
				r := yodel(strings.Fields(args)...)
				if r.code != test.code || !strings.Contains(r.err, test.ruleLs) || strings.Contains(r.err, cut) != (test.ruleLs != "") || strings.Contains(r.out, test.none) || !strings.Contains(r.out, "Shop") {
					t.Errorf("yodel %s: got %d\n%s\n%s", args, r.code, r.out, r.err)
				}
				if strings.HasSuffix(args, "name") && strings.Join(strings.Fields(r.out), " ") != test.rules {
					t.Errorf("yodel %s: got %s, want %s", args, r.out, test.rules)
				}
			}
			console := openConsole(t, env)
			in := console.login(t)
			until(t, "the console has read the services", func() bool {
				_, text, _ := console.ask(t, http.MethodGet, "/api/overview", "", in)
				missing := test.cut && !strings.Contains(text, `"missing":["`+test.ls)
				rule := test.ruleLs != "" && !strings.Contains(text, `"rulesErr":"`+test.ruleLs)
				return strings.Contains(text, "Shop") && !missing && !rule
			})
			_, text, _ := console.ask(t, http.MethodGet, "/api/rules", "", in)
			if strings.Contains(text, test.none) && test.unread == "" || !strings.Contains(text, "Shop") || strings.Contains(text, `"err":"`+test.ruleLs) != (test.ruleLs != "") {
				t.Errorf("the rules of the console: got %s", text)
			}
		})
	}
}

// A record of an instance, or of a setting of an operator, that cannot be read is named on every
// door, also if it is the only one of its service.
func TestRecordsThatCannotBeReadAreNamed(t *testing.T) {
	folder := startShop(t)
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(folder, "yodel", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if later := time.Now().Add(time.Hour); os.Chtimes(path, later, later) != nil { // it expires then
			t.Fatal("the time of the file cannot be set")
		}
	}
	if r := run(t, folder, "ls"); r.code != exitOK || strings.Contains(r.err, "cannot be read") {
		t.Fatalf("yodel ls: got %d\n%s\n%s", r.code, r.out, r.err)
	}
	write("shop.Cart/10.0.0.9:1", `{"addr":`)
	write("Ghost/10.0.0.9:1", `{"address":"10.0.0.9:1"}`)
	list := file.New(folder, nil)
	for service, record := range map[string]string{"shop.Cart": `{"state":"off"}`, "Ghost": `{`} {
		if err := list.Keep(t.Context(), service, "overrides", "10.0.0.9:1", []byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	lost := []string{
		"shop.Cart: the record yodel/shop.Cart/10.0.0.9:1 cannot be read, and its instance is not listed: unexpected end of JSON input",
		"Ghost: the record yodel/Ghost/10.0.0.9:1 cannot be read, and its instance is not listed: the record has no addr",
	}
	settings := []string{
		`the setting of 10.0.0.9:1 of shop.Cart cannot be read, and does not count: the state "off" is neither "active" nor "inactive" (record yodel/shop.Cart^overrides/10.0.0.9:1)`,
		"the setting of 10.0.0.9:1 of Ghost cannot be read, and does not count: unexpected end of JSON input (record yodel/Ghost^overrides/10.0.0.9:1)",
	}
	for _, args := range []string{"ls", "ls -o json", "ls -o name"} {
		r := run(t, folder, strings.Fields(args)...)
		for _, want := range slices.Concat(lost, settings) {
			if r.code != exitUnreachable || !strings.Contains(r.err, want) {
				t.Errorf("yodel %s: got %d, want %s:\n%s\n%s", args, r.code, want, r.out, r.err)
			}
		}
		if !strings.Contains(r.out, "Ghost") || !strings.Contains(r.out, "shop.Pay") {
			t.Errorf("yodel %s: got\n%s", args, r.out)
		}
	}
	for args, want := range map[string]string{"ls shop.Cart": lost[0], "ls Ghost": lost[1], "top -n 1 -o json": lost[0], "events -o json": lost[1]} {
		if r := run(t, folder, strings.Fields(args)...); r.code != exitUnreachable || !strings.Contains(r.err, want) {
			t.Errorf("yodel %s: got %d\n%s\n%s", args, r.code, r.out, r.err)
		}
	}
	for _, args := range []string{"doctor", "doctor shop.Cart", "doctor Ghost"} {
		r := run(t, folder, strings.Fields(args)...)
		for i, service := range []string{"shop.Cart", "Ghost"} {
			setting := service + "@10.0.0.9:1 cannot be read, and does not count\n     yodel/" + service + "^overrides/10.0.0.9:1: "
			asked := args == "doctor" || strings.HasSuffix(args, service)
			if strings.Contains(r.out, lost[i]) != asked || strings.Contains(r.out, setting) != asked {
				t.Errorf("yodel %s, about %s: got\n%s", args, service, r.out)
			}
		}
	}
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "YODEL_REGISTRY": "file:" + folder}
	console := openConsole(t, env)
	in := console.login(t)
	until(t, "the checks of the console name the records", func() bool {
		_, text, _ := console.ask(t, http.MethodGet, "/api/checks", "", in)
		for _, want := range []string{
			`{"kind":"problem.record","severity":"warn","service":"shop.Cart","args":["yodel/shop.Cart/10.0.0.9:1","unexpected end of JSON input"]}`,
			`{"kind":"problem.record","severity":"warn","service":"Ghost","args":["yodel/Ghost/10.0.0.9:1","the record has no addr"]}`,
			`{"kind":"setting","severity":"warn","service":"Ghost","args":["10.0.0.9:1","unexpected end of JSON input","yodel/Ghost^overrides/10.0.0.9:1"]}`,
			`{"kind":"setting","severity":"warn","service":"shop.Cart","args":["10.0.0.9:1",`,
		} {
			if !strings.Contains(text, want) {
				return false
			}
		}
		return true
	})
}

// A watch goes on though a part of its data cannot be read, and says so each time.
func TestAWatchOfAListThatIsNotComplete(t *testing.T) {
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "YODEL_REGISTRY": consulOf(t, true, "")}
	for _, args := range []string{"ls --all --watch --every 10ms", "rule ls --watch --every 10ms"} {
		ctx, cancel := context.WithCancel(t.Context())
		var out, errs buffer
		ended := make(chan int, 1)
		go func() {
			a := &app{in: strings.NewReader(""), out: &out, err: &errs, env: func(name string) string { return env[name] }}
			ended <- a.run(ctx, strings.Fields(args))
		}()
		until(t, "yodel "+args+" has said three times that it is not complete", func() bool {
			return strings.Count(errs.String(), "is not complete") >= 3 && strings.Count(out.String(), "Shop") >= 3 || len(ended) > 0
		})
		cancel()
		if code := <-ended; code != exitInterrupted {
			t.Errorf("yodel %s: got %d %s", args, code, errs.String())
		}
	}
}

// A service is not degraded because the machine is slow: the instances share a processor that takes
// longer to answer all questions than the command waits for one.
func TestLsOfAFleetOnASlowMachine(t *testing.T) {
	const instances = 120
	processor := make(chan struct{}, 1)
	slow := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			select {
			case processor <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			<-time.After(5 * time.Millisecond)
			<-processor
			return next(ctx, call)
		}
	}
	folder := t.TempDir()
	list, ctx := file.New(folder, nil), t.Context()
	for range instances {
		s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Logger: silence(), Middleware: []yodel.Middleware{slow}})
		if err := s.Handle("shop.Cart.Add", func(in string) (string, error) { return in, nil }); err != nil {
			t.Fatal(err)
		}
		if err := list.Announce(ctx, "shop.Cart", discovery.Instance{Addr: serve(t, s, nil)}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, folder, "ls", "--timeout", "600ms", "-o", "json")
	var rows []serviceRow
	if err := json.Unmarshal([]byte(r.out), &rows); err != nil || len(rows) != 1 {
		t.Fatalf("got %v %+v", err, r)
	}
	if s := rows[0]; s.State != "idle" || s.Up != instances || s.Note != "" {
		t.Errorf("%d of %d instances are up, and the service is %s: %s", s.Up, s.Total, s.State, s.Note)
	}
}
