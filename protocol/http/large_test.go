// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"context"
	"fmt"
	std "net/http"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
)

// The server uses the memory of large requests and replies again. A handler may keep a request
// whose codec has messages of bytes, and no call gets a part of another one.
func TestLargeMessagesStayApart(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{Codecs: []yodel.Codec{yodel.JSON, raw.Codec}}), client(t, h2)
		var mu sync.Mutex
		kept := make(map[string][]byte)
		must(t, s.Handle("Test.Keep", func(_ context.Context, in *[]byte) (*[]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			kept[string((*in)[:8])] = *in
			return in, nil
		}))
		bodyOf := func(caller, call int) string {
			return fmt.Sprintf("%d %6d", caller, call) + strings.Repeat(string(rune('a'+caller)), 60<<10+40<<10*(call%5))
		}
		var all sync.WaitGroup
		for caller := range 4 {
			all.Go(func() {
				for call := range 20 {
					body := bodyOf(caller, call)
					got := s.do(c, "POST", "/Test/Keep", body, "Content-Type", "application/octet-stream")
					if got.StatusCode != std.StatusOK || got.body != body {
						t.Errorf("raw: got %d and %d bytes", got.StatusCode, len(got.body))
					}
					text := fmt.Sprintf(`{"text":%q}`, body)
					s.post(c, "/Test/Echo", text).is(t, std.StatusOK, text)
				}
			})
		}
		all.Wait()
		for key, got := range kept {
			var caller, call int
			if _, err := fmt.Sscanf(key, "%d %6d", &caller, &call); err != nil || !bytes.Equal(got, []byte(bodyOf(caller, call))) {
				t.Errorf("the request that the handler keeps has changed: %v", err)
			}
		}
		if len(kept) != 80 {
			t.Errorf("%d requests are kept", len(kept))
		}
	})
}
