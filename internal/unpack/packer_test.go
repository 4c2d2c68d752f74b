// SPDX-License-Identifier: Apache-2.0

package unpack_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/unpack"
)

// A fake compresses every body to some bytes, and decompresses every body to more.
type fake struct {
	packed, unpacked int
	err              error
}

func (fake) Name() string { return "fake" }

func (c fake) Append(dst, _ []byte) ([]byte, error) {
	return append(dst, make([]byte, c.packed)...), c.err
}

func (c fake) Decompress(dst, _ []byte, limit int) ([]byte, error) {
	if c.unpacked > limit {
		return nil, unpack.ErrTooLarge
	}
	return append(dst, make([]byte, c.unpacked)...), nil
}

var limits = unpack.Limits{Most: 4 << 20, Ratio: 100}

func TestPackDecidesWhatIsSent(t *testing.T) {
	for name, test := range map[string]struct {
		packer       unpack.Packer
		body, packed int
		ok           bool
	}{
		"no compressor":                {unpack.Packer{Limits: limits}, 2000, 0, false},
		"small":                        {unpack.Packer{Compressor: fake{packed: 1}, Above: 1000, Limits: limits}, 999, 0, false},
		"smaller by compression":       {unpack.Packer{Compressor: fake{packed: 700}, Above: 1000, Limits: limits}, 1000, 700, true},
		"not smaller":                  {unpack.Packer{Compressor: fake{packed: 1000}, Above: 1000, Limits: limits}, 1000, 1000, false},
		"larger than the limit":        {unpack.Packer{Compressor: fake{packed: 1}, Limits: unpack.Limits{Most: 1000}}, 1001, 0, false},
		"64 KiB":                       {unpack.Packer{Compressor: fake{packed: 60}, Limits: limits}, 64 << 10, 60, true},
		"more than 100 times smaller":  {unpack.Packer{Compressor: fake{packed: 2000}, Limits: limits}, 200_001, 2000, false},
		"100 times smaller":            {unpack.Packer{Compressor: fake{packed: 2000}, Limits: limits}, 200_000, 2000, true},
		"any ratio with a fixed limit": {unpack.Packer{Compressor: fake{packed: 1}, Limits: unpack.Limits{Most: 1 << 20}}, 1 << 20, 1, true},
	} {
		packed, ok, err := test.packer.Pack(nil, make([]byte, test.body))
		if len(packed) != test.packed || ok != test.ok || err != nil {
			t.Errorf("%s: got %d bytes, %v, %v", name, len(packed), ok, err)
		}
	}
}

func TestPackKeepsItsMemoryAndNamesTheCompressor(t *testing.T) {
	p := unpack.Packer{Compressor: fake{err: errors.New("it fails")}}
	p.Limits = limits
	scratch := make([]byte, 1, 100)
	packed, ok, err := p.Pack(scratch, []byte("body"))
	if &packed[0] != &scratch[0] || ok || err == nil || err.Error() != "compress with fake: it fails" {
		t.Errorf("got %v, %v, %v", packed, ok, err)
	}
}

func TestUnpackRefusesLargeBodies(t *testing.T) {
	for _, test := range []struct {
		packed, unpacked int
		want             string
	}{
		{1, 64 << 10, ""},
		{1, 64<<10 + 1, "has 1 bytes, and more than 65536 after decompression (fake): that is the default of Limits.MaxDecompressed for its size"},
		{1 << 20, 4 << 20, ""},
		{1 << 20, 4<<20 + 1, "has more than 4194304 bytes after decompression (fake): that is Limits.MaxDecompressed"},
	} {
		p := unpack.Packer{Compressor: fake{unpacked: test.unpacked}, Limits: limits, Gate: new(unpack.Gate)}
		body, m := make([]byte, test.packed), memory.NewLimit(1<<30)
		out, err := p.Unpack(t.Context(), m, nil, body)
		if test.want == "" && (err != nil || len(out) != test.unpacked || m.Used() != len(out)) || test.want != "" && !errors.Is(err, unpack.ErrTooLarge) {
			t.Errorf("%d to %d bytes: got %d bytes, %v", test.packed, test.unpacked, len(out), err)
		}
		if got := p.TooLarge(body); test.want != "" && !strings.HasPrefix(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestFaultsOfBodiesThatWereRefused(t *testing.T) {
	p := unpack.Packer{Compressor: fake{}, Limits: unpack.Limits{Most: 100}}
	for _, test := range []struct {
		err      error
		id, want string
	}{
		{memory.ErrFull, "YDL3007", "A.B: the server has no memory left to decompress the request"},
		{unpack.ErrTooLarge, "YDL2204", "A.B: the request " + p.TooLarge([]byte("x"))},
		{errors.New("another"), "", ""},
	} {
		f := p.Fault(test.err, "A.B", "the request", "the server", []byte("x"))
		if (f == nil) != (test.id == "") || f != nil && (f.ID != test.id || f.Error() != test.want) {
			t.Errorf("%v: got %v, want %s", test.err, f, test.want)
		}
	}
}
