// SPDX-License-Identifier: Apache-2.0

package protocolfuzz_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
)

// A world is what all conversations of a lap share: what was executed, and what was said of it.
type world struct {
	seq     atomic.Uint64
	workers atomic.Int64 // that call the model

	breached atomic.Bool // the model has broken the protocol, which fails calls with Internal

	mu      sync.Mutex
	ran     map[uint64]int // how often each call of the model was executed
	refuted map[uint64]bool
	denied  map[uint64]bool // calls of the real side that the model refused
	oneWays map[uint64]string
	turns   map[turnKey]*turn
	faults  []string
}

type turnKey struct {
	conversation uint64
	key          byte
}

// A turn is what runs of the ordered calls with one key.
type turn struct {
	running bool
	last    uint32
}

func newWorld() *world {
	return &world{
		ran: make(map[uint64]int), refuted: make(map[uint64]bool), denied: make(map[uint64]bool),
		oneWays: make(map[uint64]string), turns: make(map[turnKey]*turn),
	}
}

func (w *world) nextSeq() uint64 { return w.seq.Add(16) } // a stream takes those up to the next

func (w *world) faultf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

func (w *world) notProcessed(seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuted[seq] = true
}

func (w *world) refused(seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.denied[seq] = true
}

func (w *world) wasRefused(seq uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.denied[seq]
}

func (w *world) sentOneWay(seq uint64, method string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.oneWays[seq] = method
}

func (w *world) idle(*conversation) bool { return w.workers.Load() == 0 }

func (w *world) executed(body []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran[requestSeq(body)]++
}

// judge returns what was executed although it must not be, and what was executed twice.
func (w *world) judge() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for seq, n := range w.ran {
		if n > 1 {
			w.faults = append(w.faults, fmt.Sprintf("the call %d was executed %d times", seq, n))
		}
		if w.refuted[seq] {
			w.faults = append(w.faults, fmt.Sprintf("W28: the call %d was executed, and its reply says that it was not processed", seq))
		}
	}
	return w.faults
}

// begin and end keep the order of calls with one key.
func (w *world) begin(body []byte) (end func()) {
	if len(body) < 21 {
		w.faultf("an ordered call has %d bytes", len(body))
		return func() {}
	}
	at := turnKey{binary.LittleEndian.Uint64(body[13:]), body[8]}
	index := binary.LittleEndian.Uint32(body[9:])
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.turns[at]
	if t == nil {
		t = new(turn)
		w.turns[at] = t
	}
	if t.running || index <= t.last {
		w.faults = append(w.faults, fmt.Sprintf("W31: call %d of key %c began when %d was the last one, and one was running: %t", index, at.key, t.last, t.running))
	}
	t.running, t.last = true, index
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		t.running = false
	}
}

// options are those of a server that serves the model.
func options(rng *rand.Rand) *yodel.ServerOptions {
	o := &yodel.ServerOptions{
		Codec: raw.Codec, Compressors: []compress.Compressor{flate.Compressor},
		Logger: slog.New(slog.DiscardHandler),
	}
	if rng.IntN(2) == 0 {
		o.MaxOpen, o.Limits.MaxOpen, o.MaxMemory = 64+rng.IntN(200), 32+rng.IntN(100), 64<<20
	}
	if rng.IntN(3) == 0 {
		o.Limits.StreamWindow = 4096
	}
	return o
}

// serve registers the methods that the model calls.
func (w *world) serve(s *yodel.Server) {
	unary := func(name string, f func(ctx context.Context, in *[]byte) (*[]byte, error)) {
		yodel.Method[[]byte, []byte](name).Handle(s, func(ctx context.Context, in *[]byte) (*[]byte, error) {
			w.executed(*in)
			return f(ctx, in)
		})
	}
	unary(echo, func(ctx context.Context, in *[]byte) (*[]byte, error) {
		call := yodel.CallFrom(ctx)
		call.ReplyAttachment = bytes.Clone(call.Attachment)
		return in, nil
	})
	yodel.Method[raw.View, raw.View](view).Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) {
		w.executed(*in)
		return in, nil
	})
	unary(delay, func(_ context.Context, in *[]byte) (*[]byte, error) {
		<-time.After(time.Duration(requestSeq(*in)%3000) * time.Microsecond)
		return in, nil
	})
	unary(wait, func(ctx context.Context, _ *[]byte) (*[]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	unary(fail, func(context.Context, *[]byte) (*[]byte, error) {
		return nil, yodel.Errorf(yodel.NotFound, "nothing is here")
	})
	unary(panics, func(context.Context, *[]byte) (*[]byte, error) { panic("as the model asked for") })
	unary(big, func(_ context.Context, in *[]byte) (*[]byte, error) {
		return new(pattern(requestSeq(*in), int(binary.LittleEndian.Uint32((*in)[8:])))), nil
	})
	unary(order, func(_ context.Context, in *[]byte) (*[]byte, error) {
		defer w.begin(*in)()
		if requestSeq(*in)%5 == 0 {
			<-time.After(200 * time.Microsecond)
		}
		return in, nil
	})
	unary(nest, func(ctx context.Context, in *[]byte) (*[]byte, error) {
		out, err := yodel.Method[[]byte, []byte](theirEcho).Call(ctx, yodel.CallFrom(ctx).Peer(), in)
		if err == nil && !bytes.Equal(*out, *in) {
			w.faultf("a call back got %d bytes, want %d", len(*out), len(*in))
		}
		return in, err
	})
	w.serveStreams(s)
}

func (w *world) serveStreams(s *yodel.Server) {
	yodel.Feed[[]byte, []byte](feed).Handle(s, func(_ context.Context, in *[]byte, send yodel.Send[[]byte]) error {
		w.executed(*in)
		seq, n, size := requestSeq(*in), binary.LittleEndian.Uint32((*in)[8:]), binary.LittleEndian.Uint32((*in)[12:])
		for i := range n {
			if err := send(new(pattern(seq+uint64(i)+1, int(size)))); err != nil {
				return err
			}
		}
		return nil
	})
	yodel.Upload[[]byte, []byte](upload).Handle(s, func(_ context.Context, recv yodel.Recv[[]byte]) (*[]byte, error) {
		n, sum := uint32(0), uint32(0)
		for msg, err := range recv {
			if err != nil {
				return nil, err
			}
			n, sum = n+1, crc32.Update(sum, crc32.IEEETable, *msg)
		}
		return new(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, n), sum)), nil
	})
	yodel.Duplex[[]byte, []byte](duplex).Handle(s, func(_ context.Context, recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
		for msg, err := range recv {
			if err == nil {
				err = send(msg)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// callPatience is how long a call to the model may take. One that takes longer hangs.
const callPatience = 30 * time.Second

// work makes calls to the model.
func (w *world) work(rng *rand.Rand, c yodel.Caller, calls int, over func() bool) {
	for range calls {
		if over() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), callPatience)
		hurried := rng.IntN(6) == 0
		if hurried {
			cancel()
			ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rng.IntN(5000))*time.Microsecond)
		}
		seq := w.nextSeq()
		err := w.callModel(ctx, rng, c, seq)
		expired := ctx.Err() != nil
		cancel()
		switch {
		case err == nil || hurried && (expired || errors.Is(err, yodel.DeadlineExceeded)) || w.wasRefused(seq) || over():
		case expired:
			w.faultf("a call to the model hangs: %v", err)
		case errors.Is(err, yodel.Internal) && w.breached.Load():
		// the connection has ended, or is being drained
		case errors.Is(err, yodel.Unavailable), errors.Is(err, yodel.Aborted):
		default:
			w.faultf("a call to the model failed: %v", err)
		}
	}
}

func (w *world) callModel(ctx context.Context, rng *rand.Rand, c yodel.Caller, seq uint64) error {
	call := &yodel.Call{Ordered: rng.IntN(5) == 0, Key: "k"}
	if rng.IntN(3) == 0 {
		call.Compressor = flate.Compressor
	}
	body := append(binary.LittleEndian.AppendUint64(nil, seq), pattern(seq, someSize(rng))...)
	switch k := rng.IntN(10); {
	case k < 5:
		call.OneWay = k == 4
		if _, client := c.(*yodel.Client); !client {
			call.Ordered = false // calls to a peer have no order
		}
		out, err := yodel.Method[[]byte, []byte](theirEcho).Do(ctx, c, call, &body)
		if err == nil && !call.OneWay && !bytes.Equal(*out, body) {
			w.faultf("a call to the model got %d bytes, want %d", len(*out), len(body))
		}
		return err
	case k < 7:
		return w.callFeed(ctx, rng, c, seq)
	case k < 8:
		return w.callUpload(ctx, rng, c, seq)
	default:
		return w.callDuplex(ctx, rng, c, seq)
	}
}

func (w *world) callFeed(ctx context.Context, rng *rand.Rand, c yodel.Caller, seq uint64) error {
	n, size := rng.IntN(6), someSize(rng)
	body := binary.LittleEndian.AppendUint64(nil, seq)
	body = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(body, uint32(n)), uint32(size))
	got := 0
	for msg, err := range (yodel.Feed[[]byte, []byte](theirFeed)).Call(ctx, c, &body) {
		if err != nil {
			return err
		}
		if got++; !bytes.Equal(*msg, pattern(seq+uint64(got), size)) {
			w.faultf("message %d of a feed of the model has %d bytes, want %d", got, len(*msg), size)
		}
		if rng.IntN(10) == 0 {
			return nil // leaving the loop cancels the call
		}
	}
	if got != n {
		w.faultf("a feed of the model had %d messages, want %d", got, n)
	}
	return nil
}

func (w *world) callUpload(ctx context.Context, rng *rand.Rand, c yodel.Caller, seq uint64) error {
	n, sum := rng.IntN(6), uint32(0)
	sent := uint32(0)
	early := false
	out, err := yodel.Upload[[]byte, []byte](theirUpload).Call(ctx, c, func(send yodel.Send[[]byte]) error {
		for range n {
			msg := pattern(seq+uint64(sent), someSize(rng))
			if err := send(&msg); err != nil {
				early = errors.Is(err, io.EOF)
				return err
			}
			sent, sum = sent+1, crc32.Update(sum, crc32.IEEETable, msg)
		}
		return nil
	})
	if err != nil {
		if early || yodel.CodeOf(err) == yodel.NotFound || yodel.CodeOf(err) == yodel.ResourceExhausted {
			return nil // the model refused it, whose request has no number
		}
		return err
	}
	if want := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, sent), sum); !bytes.Equal(*out, want) {
		w.faultf("an upload to the model: got %x, want %x", *out, want)
	}
	return nil
}

func (w *world) callDuplex(ctx context.Context, rng *rand.Rand, c yodel.Caller, seq uint64) error {
	n := rng.IntN(6)
	err := yodel.Duplex[[]byte, []byte](theirDuplex).Call(ctx, c, func(recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
		for i := range n {
			msg := pattern(seq+uint64(i), someSize(rng))
			if err := send(&msg); err != nil {
				return err
			}
			back, err := recv.Next()
			if err != nil {
				return err
			}
			if !bytes.Equal(*back, msg) {
				w.faultf("a message of %d bytes came back with %d", len(msg), len(*back))
			}
		}
		return nil
	})
	if code := yodel.CodeOf(err); errors.Is(err, io.EOF) || code == yodel.NotFound || code == yodel.ResourceExhausted {
		return nil // the model refused it, whose request has no number
	}
	return err
}
