// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/nacos"
	"github.com/yodel-rpc/yodel/rules"
)

// opened opens a registry for a process of the tests of rules, which lasts as long as the process.
func opened(addr string) rules.Registry { return nacos.New(addr, nil) }

func keepsRules(t *testing.T, server *realserver.NacosServer) {
	for _, v1 := range []bool{false, true} {
		t.Run(fmt.Sprint("V1=", v1), func(t *testing.T) {
			r := connect(t, server.Addr, nacos.Options{V1: v1, Group: fmt.Sprint("v1-", v1)})
			governed.Book(t, r)
			writers(t, r)
		})
	}
	t.Run("processes", func(t *testing.T) {
		governed.Restarts(t, governed.Registry{Addr: server.Addr, Restart: server.Restart, Open: func(addr string) rules.Registry {
			return connect(t, addr, nacos.Options{})
		}})
	})
}

// writers checks that concurrent writers of the first records lose none.
func writers(t *testing.T, r *nacos.Registry) {
	const n = 4
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := r.Keep(t.Context(), "Many", "rules", fmt.Sprint("r", i), []byte(`{"a":"<b>"}`)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var last map[string][]byte
	err := r.Kept(ctx, "Many", "rules", func(records map[string][]byte) {
		if last = records; len(records) == n {
			cancel()
		}
	})
	if err != nil || len(last) != n || string(last["r0"]) != `{"a":"<b>"}` {
		t.Errorf("%d writers have written %q, %v", n, last, err)
	}
}
