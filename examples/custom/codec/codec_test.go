// SPDX-License-Identifier: Apache-2.0

package codec_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/custom/codec"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// region test

func TestForm(t *testing.T) {
	yodeltest.TestCodec(t, codec.Form, nil,
		&url.Values{},
		&url.Values{"color": {"red", "green"}, "": {""}, "a&b=c;%+ \x00": {"ä&=;%+ \xff"}},
		&map[string]string{},
		&map[string]string{"size": "7", "color": "red"},
	)
}

// endregion test

func TestFormEncodesCalls(t *testing.T) {
	const paint yodel.Method[url.Values, map[string]string] = "Shop.Paint"
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{codec.Form}})
	paint.Handle(s.Server, func(ctx context.Context, in *url.Values) (*map[string]string, error) {
		if got := yodel.CallFrom(ctx).Encoding().Name(); got != "form" {
			t.Errorf("the codec of the call is %s", got)
		}
		return &map[string]string{"painted": in.Get("color")}, nil
	})
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Codec: codec.Form}, s)

	out, err := paint.Call(t.Context(), c, &url.Values{"color": {"red"}})
	if err != nil {
		t.Fatal(err)
	}
	if (*out)["painted"] != "red" {
		t.Errorf("got %v", *out)
	}
}

func TestFormRefusesWhatItCannotHold(t *testing.T) {
	var n int
	if _, err := codec.Form.Append(nil, &n); err == nil {
		t.Error("an int was encoded")
	}
	if err := codec.Form.Decode([]byte("a=1"), &n); err == nil {
		t.Error("an int was decoded")
	}
	if err := codec.Form.Decode([]byte("a=1&a=2"), new(map[string]string)); err == nil {
		t.Error("one of two values of a key is lost")
	}
}

func FuzzForm(f *testing.F) {
	f.Add([]byte("color=red&color=green&size=7"))
	f.Fuzz(func(t *testing.T, src []byte) {
		var first, second url.Values
		if codec.Form.Decode(src, &first) != nil {
			return
		}
		again, err := codec.Form.Append(nil, first)
		if err != nil || codec.Form.Decode(again, &second) != nil || first.Encode() != second.Encode() {
			t.Errorf("%q is %v, and encoded again %v, %v", src, first, second, err)
		}
	})
}
