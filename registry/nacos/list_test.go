// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/nacos"
)

// pages is a Nacos with the services of names, whose list a test changes.
type pages struct {
	names  []string
	most   int                            // on a page, if it is less than the caller asks for
	hidden int                            // how many services are counted and not listed
	before func(p *pages, page int) error // is called before each page
}

func (p *pages) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	number, err := strconv.Atoi(req.FormValue("pageNo"))
	if err == nil {
		err = p.before(p, number)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	size := cmp.Or(p.most, 500)
	from := min(size*(number-1), len(p.names))
	_ = json.NewEncoder(w).Encode(map[string]any{"count": len(p.names) + p.hidden, "doms": p.names[from:min(from+size, len(p.names))]})
}

// A list is complete although services leave while it is read, or it says that it is not.
func TestAListThatChanges(t *testing.T) {
	all := make([]string, 1200)
	for i := range all {
		all[i] = fmt.Sprintf("list.S%04d", i)
	}
	for _, c := range []struct {
		what   string
		before func(p *pages, page int) error
		want   string // the error, or "" for a complete list
	}{
		{"small pages", func(p *pages, _ int) error { p.most = 100; return nil }, ""},
		{"fewer than there are", func(p *pages, _ int) error { p.hidden = 5; return nil }, "nacos: it says that there are 1205 services, and lists 1200"},
		{"one service leaves", func(p *pages, page int) error {
			if page == 2 && len(p.names) == len(all) {
				p.names = p.names[1:]
			}
			return nil
		}, ""},
		{"services leave all the time", func(p *pages, page int) error {
			if page == 2 {
				p.names = p.names[1:]
			}
			return nil
		}, "nacos: the list of services has changed each time that it was read"},
		{"the second page fails", func(_ *pages, page int) error {
			if page == 2 {
				return errors.New("no second page")
			}
			return nil
		}, "no second page"},
	} {
		p := &pages{names: all, before: c.before}
		server := httptest.NewServer(p)
		names, err := connect(t, server.Listener.Addr().String(), nacos.Options{V1: true}).Services(t.Context())
		server.Close()
		switch {
		case c.want == "" && (err != nil || len(names) != len(p.names) || !slices.Contains(names, "list.S0500")):
			t.Errorf("%s: %d names, %v", c.what, len(names), err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || len(names) < 500):
			t.Errorf("%s: %d names, %v", c.what, len(names), err)
		}
	}
}

// holds is how many services make before-end announces here.
const holds = 10_000

// services lists the services of a real server by both versions of its API.
func services(t *testing.T, addr string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, other := connect(t, addr, nacos.Options{}), connect(t, addr, nacos.Options{Group: "other"})
	must(t, r.Announce(ctx, "list.Cart", discovery.Instance{Addr: "127.0.0.1:1"}, time.Minute))
	must(t, r.Announce(ctx, "list/Pay@@home", discovery.Instance{Addr: "127.0.0.1:1"}, time.Minute))
	must(t, other.Announce(ctx, "list.Stock", discovery.Instance{Addr: "127.0.0.1:1"}, time.Minute))
	for ctx.Err() == nil {
		names, err := r.Services(ctx)
		must(t, err)
		if slices.Contains(names, "list.Stock") {
			t.Errorf("a service of another group is listed: %q", names)
		}
		if slices.Contains(names, "list.Cart") && slices.Contains(names, "list/Pay@@home") {
			break
		}
	}
	if ctx.Err() != nil {
		t.Fatal("the services are not listed")
	}
	for _, group := range []string{"", "other"} {
		now, err := connect(t, addr, nacos.Options{Group: group}).Services(ctx)
		must(t, err)
		old, err := connect(t, addr, nacos.Options{V1: true, Group: group}).Services(ctx)
		if err != nil || len(old) == 0 || !slices.Equal(now, old) {
			t.Errorf("version 1 lists %q, %v, and version 3 lists %q", old, err, now)
		}
	}
	t.Run("complete", func(t *testing.T) {
		governed.Announced(t, connect(t, addr, nacos.Options{Group: "complete", Timeout: time.Minute}), holds, nil)
	})
}
