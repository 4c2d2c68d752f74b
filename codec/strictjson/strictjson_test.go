// SPDX-License-Identifier: Apache-2.0

package strictjson_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/strictjson"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type order struct{ Book, Customer string }

func TestCodec(t *testing.T) {
	yodeltest.TestCodec(t, strictjson.Codec, &yodeltest.CodecOptions{Changes: valuetable.Changes["JSON"]}, &order{}, &order{"Dune", "Ann"})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"Book":"Dune"}`))
	f.Add([]byte(`{"Book":"Dune","Color":"red"} x`))
	f.Fuzz(func(t *testing.T, src []byte) {
		var strict, lenient order
		if strictjson.Codec.Decode(src, &strict) == nil {
			if err := yodel.JSON.Decode(src, &lenient); err != nil || strict != lenient {
				t.Errorf("%q: got %v, and yodel.JSON %v, %v", src, strict, lenient, err)
			}
		}
	})
}

// TestUnknownFieldsAreRefused has a client whose request has another field name than the server's.
func TestUnknownFieldsAreRefused(t *testing.T) {
	executed := 0
	const buy yodel.Method[order, string] = "Shop.Buy"
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{strictjson.Codec}})
	buy.Handle(s.Server, func(_ context.Context, in *order) (*string, error) {
		executed++
		return &in.Book, nil
	})
	c := yodeltest.NewClient(t, nil, s)
	if title, err := buy.Call(t.Context(), c, &order{Book: "Dune"}); err != nil || *title != "Dune" {
		t.Errorf("got %v, %v", title, err)
	}
	type renamed struct{ Title, Customer string }
	err := c.Call(t.Context(), string(buy), &renamed{Title: "Dune"}, nil)
	if yodel.CodeOf(err) != yodel.InvalidArgument || !yodel.NotProcessed(err) || executed != 1 {
		t.Errorf("got %v after %d executions, want a refusal after 1", err, executed)
	}
}

func Example() {
	var o order
	fmt.Println(strictjson.Codec.Decode([]byte(`{"Title":"Dune"}`), &o))
	// Output: json: unknown field "Title"
}

// Values of many types, in each place of a message, arrive as they were sent or are refused.
func TestCombinations(t *testing.T) { valuetable.Combine(t, strictjson.Codec, "JSON") }
