// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// The messages that one read has brought are taken in together, up to the first frame that has
// something special. What a receiver gets must not depend on it.

// batchOf makes frames of two streams: mostly whole messages, and all that may stand between them.
func batchOf(r *rand.Rand) (frames [][]byte) {
	ids := []uint32{callID(0, 1), callID(1, 1)}
	for n := range 1 + r.IntN(60) {
		id := ids[0]
		if r.IntN(4) == 0 {
			id = ids[1]
		}
		body := string(patterned(r.IntN(100), n))
		flags := []wire.Flags{0, 0, 0, wire.Compressed, wire.HasAttachment, wire.Waited, 1 << 3, wire.HasChecksum}[r.IntN(8)]
		switch r.IntN(40) {
		case 0:
			frames = append(frames, sized(id, flags|wire.More, 2*len(body), body), data(id, 0, body))
		case 1:
			frames = append(frames, sized(id, flags, len(body), body))
		case 2:
			frames = append(frames, ping(uint64(n)))
		case 3:
			frames = append(frames, data(id, flags|wire.OfReply, body)) // of a stream that is not open
		case 4:
			frames = append(frames, data(id, flags, string(patterned(2000, n)))) // larger than a message may be
		case 5:
			frames = append(frames, data(id, wire.End, ""))
		case 6:
			frames = append(frames, data(id, flags|wire.More, body)) // without a size
		case 7:
			frames = append(frames, sized(id, wire.More, 500, body)) // to be cut off by what follows
		case 8:
			broken := data(id, wire.HasChecksum, body)
			broken[len(broken)-1]++
			frames = append(frames, broken)
		default:
			frames = append(frames, data(id, flags, body))
		}
	}
	return frames
}

func TestMessagesThatComeAtOnceAreThoseThatComeOneByOne(t *testing.T) {
	for seed := range uint64(400) {
		frames := batchOf(rand.New(rand.NewPCG(seed, 0)))
		one := receivedOf(t, frames)
		all := receivedOf(t, [][]byte{slices.Concat(frames...)})
		if one != all {
			t.Fatalf("seed %d: one by one\n%s\nat once\n%s", seed, one, all)
		}
	}
}

// receivedOf says parts to a server that has two streams open, and returns what came of them.
func receivedOf(t *testing.T, parts [][]byte) (all string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		of := make([]string, 2)
		begin := make(chan struct{})
		// not that of the call: what came before its end counts too
		ctx, stop := context.WithCancel(context.Background())
		limits := limitsWith(4096, 1<<20)
		limits.MaxMessage = 1500
		s := &setup{limits: limits, serves: map[string]*handler{"upload": {serve: func(r *mux.Request) {
			st, got := r.Stream(), &of[r.Body[0]]
			st.Accept()
			<-begin
			for {
				msg, flags, err := st.Receive(ctx)
				if err != nil {
					*got += err.Error()
					return
				}
				*got += fmt.Sprintf("%d %#x %q, ", len(msg), flags, msg)
			}
		}}}}
		client, server := memoryPair(0)
		srv := mux.New(server, nil, false, s.config(t, mux.Config{}, s.serves))
		_, _ = client.Write(slices.Concat(hello(nil), methodOf(0, "upload"), request(0, callID(0, 1), "\x00"), request(0, callID(1, 1), "\x01")))
		synctest.Wait()
		for _, part := range parts {
			_, _ = client.Write(part)
			synctest.Wait()
		}
		breach := srv.Err()
		close(begin)
		synctest.Wait()
		stop()
		client.Close()
		<-srv.Ended()
		synctest.Wait()
		all = fmt.Sprintf("%s\n%s\n%v", of[0], of[1], breach)
		wantEmpty(t, "the server", srv)
	})
	return all
}
