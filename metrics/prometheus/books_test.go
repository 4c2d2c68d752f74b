// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"testing"
	"time"

	client_golang "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

const buy yodel.Method[string, string] = "Shop.Buy"

// buying is the method of a shop: it ends each call as the request says.
func buying(ctx context.Context, how *string) (*string, error) {
	switch *how {
	case "internal":
		return nil, yodel.Errorf(yodel.Internal, "no price")
	case "not_found":
		return nil, yodel.Errorf(yodel.NotFound, "no such thing")
	case "resource_exhausted":
		return nil, yodel.Errorf(yodel.ResourceExhausted, "come back later")
	case "canceled":
		<-ctx.Done()
		return nil, yodel.Errorf(yodel.Canceled, "given up")
	}
	return how, nil
}

// scrape reads the series of Shop.Buy from a handler, by name and code. It adds up those of all
// other labels.
func scrape(t *testing.T, url string) (byCode map[string]map[string]float64) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	byCode = make(map[string]map[string]float64)
	code := regexp.MustCompile(`code="([^"]*)"`)
	line := regexp.MustCompile(`^(yodel_\w+)\{(.*)\} (\S+)$`)
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		found := line.FindStringSubmatch(lines.Text())
		if found == nil {
			continue
		}
		value, err := strconv.ParseFloat(found[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		of := ""
		if c := code.FindStringSubmatch(found[2]); c != nil {
			of = c[1]
		}
		if byCode[found[1]] == nil {
			byCode[found[1]] = make(map[string]float64)
		}
		byCode[found[1]][of] += value
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return byCode
}

// Every sum of the metrics is what the books of the callers say, and what the lists of the command
// and of the console show.
func TestTheMetricsAreWhatTheBooksSay(t *testing.T) {
	m, silent := New(nil), slog.New(slog.DiscardHandler)
	inForce := make(chan struct{}, 1)
	governed := rules.With(file.New(t.TempDir(), nil), &rules.Options{Logger: silent, OnChange: func(_ string, now []rules.Rule) {
		if len(now) > 0 {
			inForce <- struct{}{}
		}
	}})
	s := m.NewServer("shop", &yodel.ServerOptions{Diagnostics: true, Logger: silent, Registrars: []discovery.Registrar{governed}})
	buy.Handle(s, buying)
	addr := serve(t, s)
	c := m.NewClient("web", discovery.Static(addr), &yodel.ClientOptions{Name: "web", Logger: silent})
	defer c.Close()
	registry := client_golang.NewRegistry()
	registry.MustRegister(m)
	site := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer site.Close()

	books := map[string]float64{"ok": 7, "internal": 3, "not_found": 2, "resource_exhausted": 4, "canceled": 2, introspect.Disabled: 5}
	all, errors := 0.0, 0.0
	for code, calls := range books {
		if all += calls; code != "ok" && code != "canceled" {
			errors += calls
		}
		if code == introspect.Disabled {
			continue
		}
		for range int(calls) {
			ctx, cancel := context.WithCancel(t.Context())
			if code == "canceled" {
				time.AfterFunc(20*time.Millisecond, cancel)
			}
			_, _ = buy.Call(ctx, c, &code) // the code says how it ends
			cancel()
		}
	}
	book, err := rules.Open(governed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := book.Put(t.Context(), rules.Rule{Service: "Shop", Side: "server", Disable: &rules.Disable{}, Author: "ann", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-inForce:
	case <-time.After(10 * time.Second):
		t.Fatal("the server has not read the rule")
	}
	for range int(books[introspect.Disabled]) {
		how := "ok"
		_, _ = buy.Call(t.Context(), c, &how)
	}

	f := fleet.New(fleet.Addresses(nil, addr), nil)
	defer f.Close()
	timed := all - books["canceled"] - books["resource_exhausted"] - books[introspect.Disabled]
	for end := time.Now().Add(10 * time.Second); ; {
		wrong, got := "", scrape(t, site.URL)
		differ := func(what string, is, want float64) {
			if is != want {
				wrong += fmt.Sprintf("\n%s is %v, want %v", what, is, want)
			}
		}
		for code, calls := range books {
			for _, name := range []string{"yodel_server_calls_total", "yodel_server_caller_calls_total", "yodel_client_calls_total"} {
				differ(name+" "+code, got[name][code], calls)
			}
		}
		differ("yodel_server_call_seconds_count", got["yodel_server_call_seconds_count"][""], timed)
		differ("yodel_client_call_seconds_count", got["yodel_client_call_seconds_count"][""], timed)
		differ("yodel_client_endpoint_attempts_total", got["yodel_client_endpoint_attempts_total"][""], all)
		differ("yodel_client_endpoint_failures_total", got["yodel_client_endpoint_failures_total"][""], errors)
		differ("yodel_server_calls_in_flight", got["yodel_server_calls_in_flight"][""], 0)
		view, err := f.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tr := view.Service("Shop").Traffic
		differ("the calls in the lists", float64(tr.Calls(tr.Rate)), all)
		differ("those that failed", float64(tr.Calls(tr.Failed*tr.Judged())), books["internal"]+books[introspect.Disabled])
		differ("those that were limited", float64(tr.Calls(tr.Limited)), books["resource_exhausted"])
		differ("those that were canceled", float64(tr.Calls(tr.Canceled)), books["canceled"])
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(wrong)
		}
	}
}
