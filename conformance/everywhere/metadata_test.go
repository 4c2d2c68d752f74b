// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// odd has metadata that protocols cannot carry as it is. Each value that is left out is secret.
var odd = yodel.Metadata{
	"X-Order": "7", "plain": "carried", "raw-bin": "\xffsecret\x00", "": "secret", "bad key": "secret", "umlaut": "secret ü", "line": "secret\r\nx: y",
	"broken": "secret\xff", "content-type": "secret/secret", "content-length": "3", "connection": "close", ":status": "500", "grpc-status": "9",
	"connect-x": "secret", "yodel-error-id": "secret", "__AUTH": "secret", "path": "secret", "huge": strings.Repeat("secret", 3<<10),
}

// prepareOdd makes the methods set odd metadata, and fail if they are bad.
func prepareOdd(tr *Trial) {
	tr.log = slog.New(slog.NewTextHandler(&tr.lines, nil))
	tr.observe = func(ctx context.Context) {
		if !tr.Control {
			call := yodel.CallFrom(ctx)
			call.SetHeader(odd)
			call.Trailer = odd
		}
	}
	tr.fail = func(int) error {
		if tr.bad.Load() {
			return absent
		}
		return nil
	}
}

// checkOddReply wants the outcome of a call to be what the method returned, with the metadata that
// can be sent. The server says what it has left out, and not its value.
func checkOddReply(ctx context.Context, c *Cell) error {
	for _, bad := range []bool{false, true} {
		c.bad.Store(bad)
		var call yodel.Call
		got, err := c.callWith(ctx, &call)
		switch code := yodel.CodeOf(err); {
		case bad && code != absent.Code:
			return fmt.Errorf("the code is %v, want %v: %w", code, absent.Code, err)
		case !bad && (err != nil || got != 1):
			return fmt.Errorf("the reply is %d, want 1: %w", got, err)
		}
		if !c.Wire.Metadata || c.Wire.Name == "JSON over HTTP" { // that caller does not look at headers
			continue
		}
		header, trailer := call.Header(), call.Trailer
		if header == nil { // the protocol has one kind of metadata
			header = trailer
		}
		for _, md := range []yodel.Metadata{header, trailer} {
			if cmp.Or(md["x-order"], md["X-Order"]) != "7" || md["plain"] != "carried" || md["huge"] != "" {
				return NotHeld("bad %t: the header is %.300q, the trailer %.300q", bad, call.Header(), call.Trailer)
			}
		}
	}
	if n := c.server.Stats().LeftOut; n == 0 {
		return NotHeld("the statistics do not say that metadata was left out")
	}
	log := c.lines.String()
	if !strings.Contains(log, "a reply was sent without a part of its metadata") || !strings.Contains(log, "method="+c.Method()+" key=") {
		return NotHeld("the log does not say what was left out: %.500s", log)
	}
	if strings.Contains(log, "secret") {
		return NotHeld("the log has a value: %.500s", log)
	}
	return nil
}

// seeOrder makes the methods note the metadata X-Order.
func seeOrder(tr *Trial) {
	tr.observe = func(ctx context.Context) {
		md := yodel.CallFrom(ctx).Metadata
		tr.metadata.Store(cmp.Or(md["x-order"], md["X-Order"]))
	}
}

// checkOddRequest wants a call to fail before it is executed if its metadata cannot be sent. An
// upper case letter is not a reason.
func checkOddRequest(ctx context.Context, c *Cell) error {
	md := yodel.Metadata{"yodel-error-id": "x"}
	if c.Wire.Name == "yodel" { // it carries all keys
		md = yodel.Metadata{"huge": odd["huge"]}
	}
	if c.Control {
		md = nil
	}
	_, err := c.Call(ctx, yodel.Call{Metadata: md})
	if n := c.executed.Load(); err == nil || n != 0 {
		return NotHeld("the method was executed %d times, and the error is %w", n, err)
	}
	if e, ok := errors.AsType[*yodel.Error](err); !ok || !e.NotProcessed || !strings.Contains(e.Message, "metadata") {
		return fmt.Errorf("the call fails for another reason: %w", err)
	}
	if !c.Wire.Metadata {
		return nil
	}
	if !strings.Contains(err.Error(), "yodel-error-id") && c.Wire.Name != "yodel" {
		return NotHeld("the error does not name the key: %w", err)
	}
	if _, err = c.Call(ctx, yodel.Call{Metadata: yodel.Metadata{"X-Order": "7"}}); err != nil {
		return err
	}
	if got, _ := c.metadata.Load().(string); got != "7" {
		return NotHeld("the method sees the order %q, want 7", got)
	}
	return nil
}
