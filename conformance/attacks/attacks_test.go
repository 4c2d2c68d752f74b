// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// The servers under attack.
const (
	plain      = ""           // default options
	authorized = "authorized" // every call needs a token
	thousand   = "thousand"   // 1000 methods
	hasty      = "hasty"      // short times
	small      = "small"      // budgets of 64 MiB for the whole server
	codecs     = "codecs"     // codecs and compressors of the standard library
	polyglot   = "polyglot"   // all protocols, short times and a budget of 256 MiB
	patient    = "patient"    // the same with the default times, for a test that keeps the processors busy

	compressing = "compressing" // default limits, compression and all protocols
)

var victims = map[string]attacks.Victim{
	plain: {},
	authorized: {Options: yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(
		func(ctx context.Context, _, token string) (context.Context, error) {
			if token == "good" { // that of the good client
				return ctx, nil
			}
			return nil, errors.New("wrong token")
		})}}},
	thousand: {Methods: 1000},
	hasty:    {Options: yodel.ServerOptions{Limits: yodel.Limits{Handshake: 500 * time.Millisecond, KeepAlive: 500 * time.Millisecond}}},
	small:    {Options: yodel.ServerOptions{MaxMemory: 64 << 20}},
	codecs: {Options: yodel.ServerOptions{
		Codecs: []yodel.Codec{gob.Codec}, Compressors: []compress.Compressor{gzip.Compressor, flate.Compressor},
	}},
	polyglot: manyProtocols(yodel.Limits{Handshake: 500 * time.Millisecond, KeepAlive: 500 * time.Millisecond}),
	patient:  manyProtocols(yodel.Limits{}),

	compressing: manyProtocols(yodel.Limits{}),
}

func manyProtocols(limits yodel.Limits) attacks.Victim {
	return attacks.Victim{Options: yodel.ServerOptions{
		MaxMemory:   256 << 20,
		Limits:      limits,
		Codecs:      []yodel.Codec{gob.Codec, hessian2.Codec, thriftcodec.Codec},
		Compressors: []compress.Compressor{gzip.Compressor},
		Protocols: []yodel.Protocol{
			http.New(&http.Options{JSONRPC: "/rpc"}), rpcx.Protocol, netrpc.Protocol, jsonrpc.Protocol, thrift.New(&thrift.Options{Service: "T"}),
			dubbo.Protocol,
		},
	}}
}

func TestMain(m *testing.M) {
	if !attacks.PlayRole(victims, map[string]func(string){"client": beClient, "server calling": beServerThatCalls}) {
		yodeltest.VerifyNoLeaks(m)
	}
}

// TestAttacks runs every attack of this module. Those on compressors and codecs with dependencies
// are in their modules.
func TestAttacks(t *testing.T) {
	all := []attacks.Attack{}
	for _, group := range [][]attacks.Attack{fairness, memory, processor, connections, protocols, bombs16K} {
		all = append(all, group...)
	}
	attacks.Run(t, all)
}
