// SPDX-License-Identifier: Apache-2.0

package valuetable_test

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/codec/pbstruct"
	"github.com/yodel-rpc/yodel/codec/thrift"
)

type maps struct {
	Texts   map[string]string  `pb:"1" thrift:"1"`
	Numbers map[int64]string   `pb:"2" thrift:"2"`
	Counts  map[uint8]int64    `pb:"3" thrift:"3"`
	Structs map[string]*nested `pb:"5" thrift:"5"`
}

type nested struct {
	Names map[string]int64 `pb:"1" thrift:"1"`
}

// Equal values have equal encodings, so that a repeat with an idempotency key has the bytes of the
// first request, and a cache finds a reply.
func TestEqualMapsHaveEqualBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []yodel.Codec{yodel.JSON, hessian2.Codec, thrift.Codec, thrift.Compact, pbstruct.Codec} {
		var first []byte
		for try := range 20 {
			m := maps{map[string]string{}, map[int64]string{}, map[uint8]int64{}, map[string]*nested{}}
			for i := range 30 {
				n := (i*7 + try*11) % 30 // another order each time
				text := strconv.Itoa(n)
				m.Texts[text], m.Numbers[int64(n)], m.Counts[uint8(n)] = "x", text, int64(n)
				m.Structs[text] = &nested{map[string]int64{text: 1, "a": 2, "b": 3}}
			}
			b, err := c.Append(nil, &m)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = b
			}
			if !bytes.Equal(b, first) {
				t.Errorf("%s: equal maps have different bytes", c.Name())
				break
			}
		}
	}
}
