// SPDX-License-Identifier: Apache-2.0

package httplink

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A request that net/http did not send, because the connection had ended before, was certainly not
// executed. The test shows that net/http still has the errors by which the Link knows that.
func TestUnsent(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	for name, before := range map[string]int{"the first request": 0, "a later request": 1} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			transport := &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) { return nc, nil },
				Protocols:   server.Config.Protocols,
			}
			conn, err := transport.NewClientConn(t.Context(), "http", "test:80")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ended := make(chan struct{}, 10)
			conn.SetStateHook(func(c *http.ClientConn) {
				if c.Err() != nil {
					ended <- struct{}{}
				}
			})
			request := func() error {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://test/", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				response, err := conn.RoundTrip(r)
				if err == nil {
					_ = response.Body.Close() // it is empty
				}
				return err
			}
			for range before {
				if err := request(); err != nil {
					t.Fatal(err)
				}
			}
			_ = nc.Close() // the reading goroutine of net/http notices it
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Fatal("net/http does not notice the end of its connection")
			}
			err = request()
			e, ok := outcome(t.Context(), err).(*yodel.Error)
			if err == nil || !ok || !e.NotProcessed {
				t.Errorf("got %v, %v", err, e)
			}
		})
	}
}
