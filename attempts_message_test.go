// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// The error of several attempts tells each reason once and whole, with the addresses it applies to.
// Only what does not fit into the line is shortened, the longest reason first.
func TestEachReasonOfSeveralAttemptsIsToldOnce(t *testing.T) {
	const expired = "TLS: the server's certificate expired on 2026-11-21"
	long := "a reason that " + strings.Repeat("goes on and ", 30) + "ends"
	for name, test := range map[string]struct {
		retries int
		reasons map[string]string // by address
		want    string
	}{
		"one server, one reason": {
			3, map[string]string{"a": expired},
			"unavailable: Try: 3 attempts at a failed, all: " + expired + " [YDL1003]",
		},
		"two servers, one reason": {
			1, map[string]string{"a": expired, "b": expired},
			"unavailable: Try: 2 attempts at a and b failed, both: " + expired + " [YDL1003]",
		},
		"five servers, one reason": {
			1, map[string]string{"a": expired, "b": expired, "c": expired, "d": expired, "e": expired},
			"unavailable: Try: 5 attempts at a, b, c and 2 more failed, all: " + expired + " [YDL1003]",
		},
		"two reasons": {
			1, map[string]string{"a": "connection refused", "b": expired, "c": "connection refused"},
			"unavailable: Try: 3 attempts failed: a and c: connection refused; b: " + expired + " [YDL1003]",
		},
		"more reasons than are shown": {
			1, map[string]string{"a": "one", "b": "two", "c": "three", "d": "four", "e": "five"},
			"unavailable: Try: 5 attempts failed: a: one; b: two; c: three; and 2 more [YDL1003]",
		},
		"a reason that is too long beside one that is short": {
			1, map[string]string{"a": long, "b": expired},
			"unavailable: Try: 2 attempts failed: a: " + long[:128] + "…" + long[len(long)-63:] + "; b: " + expired + " [YDL1003]",
		},
		"a reason that is too long": {
			2, map[string]string{"a": long},
			"unavailable: Try: 2 attempts at a failed, both: " + long[:160] + "…" + long[len(long)-79:] + " [YDL1003]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			failing := func(ep *yodel.Endpoint, _ yodel.Handler) yodel.Handler {
				return func(context.Context, *yodel.Call) error {
					return &yodel.Error{
						Code: yodel.Unavailable, ID: "YDL1108", NotProcessed: true,
						Message: fmt.Sprintf("Try: %s: %s", ep.Addr(), test.reasons[ep.Addr()]),
					}
				}
			}
			addrs := strings.Split("a b c d e", " ")[:len(test.reasons)]
			c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
				Transport: mem.New(), Balancer: inOrder, EndpointMiddleware: []yodel.EndpointMiddleware{failing},
				Middleware: []yodel.Middleware{retry.With(&retry.Options{Times: test.retries, Backoff: 1})},
			})
			defer c.Close()
			err := c.Call(t.Context(), "Try", &Empty{}, nil)
			if err == nil || err.Error() != test.want {
				t.Errorf("got\n%v\nwant\n%s", err, test.want)
			}
			if line := err.Error(); len(line) > 300 {
				t.Errorf("the line has %d bytes", len(line))
			}
			if long := fmt.Sprintf("%+v", err); !strings.Contains(long, "\n  next  compare the certificates") {
				t.Errorf("the next step is not that of the reason: %s", long)
			}
		})
	}
}
