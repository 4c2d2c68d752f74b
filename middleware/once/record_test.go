// SPDX-License-Identifier: Apache-2.0

package once

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

func FuzzRecord(f *testing.F) {
	call := &yodel.Call{Trailer: yodel.Metadata{"a": "b"}, ReplyAttachment: []byte("x")}
	f.Add(appendReply(fingerprint{}, call, &yodel.Encoded{Body: []byte("body"), Several: true}, 100))
	f.Add(appendError(fingerprint{}, call, &yodel.Error{Code: yodel.NotFound, ID: "X", Message: "m", Details: []yodel.Detail{{Type: "t", Value: []byte("d")}}, RetryAfter: time.Second}, 1000))
	call.SetHeader(yodel.Metadata{"c": "d"})
	f.Add(appendReply(fingerprint{}, call, &yodel.Encoded{Body: []byte("body")}, 100))
	f.Add(appendRecord(nil, lost, fingerprint{}))
	f.Fuzz(func(t *testing.T, record []byte) {
		o, err := readOutcome(record)
		if err != nil {
			return
		}
		again := &yodel.Call{Trailer: o.trailer, ReplyAttachment: o.attachment}
		again.SetHeader(o.header)
		var second []byte
		if o.err != nil {
			second = appendError(printOf(record), again, o.err, 1<<30)
		} else {
			second = appendReply(printOf(record), again, o.reply, 1<<30)
		}
		p, err := readOutcome(second)
		if err != nil {
			t.Fatalf("%x is read, and made %x, which is not: %v", record, second, err)
		}
		if (o.err == nil) != (p.err == nil) || !bytes.Equal(o.attachment, p.attachment) || !maps.Equal(o.trailer, p.trailer) || !maps.Equal(o.header, p.header) {
			t.Errorf("%+v became %+v", o, p)
		}
		if short := shortened(record); len(short) > len(record) && len(record) > headSize+300 {
			t.Errorf("shortened, %d bytes became %d", len(record), len(short))
		}
	})
}
