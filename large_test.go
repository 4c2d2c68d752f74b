// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
)

// What the raw codec gives to a handler and to a caller is theirs, whatever its size and whether it
// was copied: no later call changes it. A reply goes into the memory that the caller has for it, if
// it is enough.
func TestRawBodiesAreTheUsers(t *testing.T) {
	const calls = 12
	kept := make(chan []byte, 2*calls)
	s := yodel.NewServer(nil)
	largeEcho.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) {
		kept <- *in
		return in, nil
	})
	c := connect(t, s, &yodel.ClientOptions{Codec: raw.Codec})
	for _, size := range []int{100, 20 << 10, 100 << 10, 3 << 20} {
		room := make([]byte, 0, size)
		for i := range byte(calls) {
			body := bytes.Repeat([]byte{i}, size)
			attachment := bytes.Repeat([]byte{'a'}, size/2*int(i%2))
			var reply []byte
			if i%3 == 0 {
				reply = room
			}
			call := &yodel.Call{Method: string(largeEcho), Args: &body, Reply: &reply, Attachment: attachment}
			must(t, c.Do(t.Context(), call))
			if i%3 == 0 && &reply[0] != &room[:1][0] {
				t.Errorf("%d bytes: the reply is not in the memory that was there for it", size)
			}
			if i%3 != 0 {
				kept <- reply
			}
			if cap(reply) > size+size/4+64 {
				t.Errorf("%d bytes have room for %d", size, cap(reply))
			}
			clear(body) // it was the caller's all the time
		}
		for len(kept) > 0 {
			if body := <-kept; len(body) != size || bytes.Count(body, body[:1]) != size {
				t.Errorf("%d bytes of %d have changed", size, body[0])
			}
		}
	}
}
