// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
)

const (
	viewEcho yodel.Method[[]byte, []byte]     = "View.Echo"
	viewed   yodel.Method[raw.View, raw.View] = yodel.Method[raw.View, raw.View](viewEcho)
)

// A handler that borrows its argument finds in it what its own caller sent until it returns,
// wherever it runs, also when it waits while other requests are read, and can answer with it.
func TestAViewIsValidUntilTheHandlerReturns(t *testing.T) {
	for where := range placements(newServer(t, nil)) {
		for _, codec := range []yodel.Codec{raw.Codec, yodel.JSON} {
			t.Run(fmt.Sprint(where, " ", codec.Name()), func(t *testing.T) { callWithViews(t, where, codec) })
		}
	}
}

func callWithViews(t *testing.T, where string, codec yodel.Codec) {
	s := newServer(t, nil)
	first, others := make(chan struct{}), make(chan struct{})
	viewed.Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) {
		if len(*in) > 0 && (*in)[0] == 0 {
			close(first)
			<-others // the memory that it was read into may be wanted meanwhile
		}
		return in, nil
	})
	placements(s)[where](string(viewEcho))
	c := connect(t, s, &yodel.ClientOptions{Codec: codec})
	call := func(letter byte, size int) {
		in := bytes.Repeat([]byte{letter}, size)
		out, err := viewEcho.Call(t.Context(), c, &in)
		if err != nil || !bytes.Equal(*out, in) {
			t.Errorf("%d bytes of %d: got other bytes, error %v", size, letter, err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { call(0, 300) })
	receive(t, first, "the first call")
	for letter := byte(1); letter < 9; letter++ {
		wg.Go(func() {
			for _, size := range []int{0, 1, 128, 5000, 65_500, 65_530, 200_000} {
				for range 5 {
					call(letter, size)
				}
			}
			if letter == 1 {
				close(others)
			}
		})
	}
	wg.Wait()
}

// Only bytes can be borrowed as they came.
func TestAViewOfCompressedBytesIsDecompressed(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}})
	viewed.Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) { return in, nil })
	c := connect(t, s, &yodel.ClientOptions{Codec: raw.Codec, Compressor: flate.Compressor, CompressAbove: 1})
	in := bytes.Repeat([]byte("ab"), 1000)
	out, err := viewEcho.Call(t.Context(), c, &in)
	must(t, err)
	if !bytes.Equal(*out, in) {
		t.Errorf("got %d other bytes", len(*out))
	}
}
