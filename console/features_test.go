// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// counter has a method of each kind with a stream.
func counter(server *yodel.Server) error {
	yodel.Feed[int, int]("Count.Up").Handle(server, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	yodel.Feed[struct{}, string]("Count.Hold").Handle(server, func(ctx context.Context, _ *struct{}, send yodel.Send[string]) error {
		held := "held"
		if err := send(&held); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	yodel.Feed[int, string]("Count.Fill").Handle(server, func(_ context.Context, n *int, send yodel.Send[string]) error {
		text := strings.Repeat("x", *n)
		for {
			if err := send(&text); err != nil {
				return err
			}
		}
	})
	yodel.Upload[int, int]("Count.Sum").Handle(server, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		sum := 0
		for n, err := range recv {
			if err != nil {
				return nil, err
			}
			sum += *n
		}
		return &sum, nil
	})
	yodel.Duplex[int, int]("Count.Flood").Handle(server, func(_ context.Context, _ yodel.Recv[int], send yodel.Send[int]) error {
		for i := 0; ; i++ {
			if err := send(&i); err != nil {
				return err
			}
		}
	})
	yodel.Duplex[int, int]("Count.Double").Handle(server, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if *n < 0 {
				return yodel.Errorf(yodel.OutOfRange, "negative")
			}
			twice := 2 * *n
			if err := send(&twice); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// The call tester calls methods of every kind with a stream, within its limits.
func TestCallTesterCallsStreams(t *testing.T) {
	s := &shop{registry: memory.New(nil), addrs: make(map[string][]string)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.serve(ctx, t, s.registry, "Count", "v1", counter)
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Operator})
	call := func(method, args string, timeout int) (out callResult, status int) {
		body := fmt.Sprintf(`{"service":"Count","method":%q,"args":%s,"timeout":%d}`, method, args, timeout)
		status, _, answer := request{method: "POST", path: "/api/call", body: body, header: as}.send(t, base)
		var all []callResult
		if status == http.StatusOK {
			must(t, json.Unmarshal([]byte(answer), &all))
			out = all[0]
		}
		return out, status
	}
	eventually(t, "the methods are known", func() bool { _, status := call("Count.Sum", "[]", 5000); return status == http.StatusOK })
	for _, one := range []struct {
		method, args, messages, cut, code string
		timeout                           int
	}{
		{"Count.Up", "3", "[0,1,2]", "", "", 5000},
		{"Count.Up", "0", "[]", "", "", 5000},
		{"Count.Hold", "{}", `["held"]`, "time", "", 300},
		{"Count.Sum", "[1,2,3]", "[6]", "", "", 5000},
		{"Count.Sum", "7", "[]", "", "invalid_argument", 5000},
		{"Count.Double", "[1,2]", "[2,4]", "", "", 5000},
		{"Count.Double", "[1,-1]", "[2]", "", "out_of_range", 5000},
	} {
		got, status := call(one.method, one.args, one.timeout)
		messages := "[" + strings.Join(got.Messages, ",") + "]"
		if status != http.StatusOK || messages != one.messages || got.Cut != one.cut || got.Code != one.code {
			t.Errorf("%s %s: got %d %s, cut %q, code %q: %s", one.method, one.args, status, messages, got.Cut, got.Code, got.Message)
		}
	}
	if got, _ := call("Count.Up", "1000000", 30000); len(got.Messages) != maxMessages || got.Cut != "messages" || got.Code != "" {
		t.Errorf("a long stream: got %d messages, cut %q, code %q", len(got.Messages), got.Cut, got.Code)
	}
	if got, _ := call("Count.Flood", "[1,2,3]", 30000); len(got.Messages) != maxMessages || got.Cut != "messages" || got.Code != "" {
		t.Errorf("a server that only sends: got %d messages, cut %q, code %q", len(got.Messages), got.Cut, got.Code)
	}
	if got, _ := call("Count.Fill", "300000", 30000); len(got.Messages) != 3 || got.Cut != "bytes" {
		t.Errorf("a large stream: got %d messages, cut %q", len(got.Messages), got.Cut)
	}
}

// An operator takes a rule and the setting of an instance back from the audit log.
func TestBrowserTakesChangesBack(t *testing.T) {
	b := newBrowser(t)
	s := newShop(t)
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	as := login(t, c, base, User{"ann", Operator})
	for path, body := range map[string]string{
		"rules/put": `{"service":"Stock","limit":{"perSecond":5000},"reason":"too many"}`,
		"instance":  fmt.Sprintf(`{"service":"Mail","addr":%q,"weight":7,"reason":"strong"}`, s.addrs["Mail"][0]),
	} {
		eventually(t, path+" is changed", func() bool {
			status, _, _ := request{method: "POST", path: "/api/" + path, body: body, header: as}.send(t, base)
			return status == http.StatusOK
		})
	}
	b.enter(c, base, "Stock")
	for _, want := range []string{"rules rolled back", "its own state and weight"} {
		b.open(base+"/audit", "too many")
		row := map[string]string{"rules rolled back": "rule stored", "its own state and weight": "instance set"}[want]
		b.eval(fmt.Sprintf(`[...document.querySelectorAll('tbody tr')].filter(r => r.innerText.includes(%q)).at(-1).querySelector('[data-revert]').focus()`, row))
		b.press("Enter")
		b.waitFor("Take back")
		b.shoot("audit-revert")
		b.tabTo("input[name=revertreason]")
		b.write("not needed")
		b.press("Enter")
		b.waitFor("not needed")
		b.waitFor(want)
		b.check("audit")
	}
	b.open(base+"/rules", "No rules")
	entries, _ := c.audit.list()
	if entries[0].Action != "instance" || entries[0].After != "its own state and weight" || entries[1].Action != "rollback" || entries[1].After != "no rules" {
		t.Errorf("the audit log has %+v", entries[:2])
	}
}

// A stream is called by keyboard. The form has the arguments of the last call again.
func TestBrowserCallsAStream(t *testing.T) {
	b := newBrowser(t)
	s := &shop{registry: memory.New(nil), addrs: make(map[string][]string)}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); s.running.Wait() })
	s.serve(ctx, t, s.registry, "Count", "v1", counter)
	c := newConsole(t, s, nil)
	base := serveConsole(t, c)
	b.enter(c, base, "Count")
	b.open(base+"/call?service=Count&method=Count.Double", "Sends each element")
	b.tabTo("form textarea")
	b.eval("document.activeElement.select()")
	b.write("[21, 4]")
	b.tabTo("button[type=submit]")
	b.press("Enter")
	b.waitFor("2 messages.")
	b.waitFor("42")
	b.check("call of a stream")
	b.shoot("call-stream")
	b.open(base+"/call?service=Count&method=Count.Double", "Earlier calls")
	if got := b.eval("document.querySelector('form textarea').value"); got != `"[21, 4]"` {
		t.Errorf("the form has %s, want the last arguments", got)
	}
}
