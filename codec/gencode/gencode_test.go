// SPDX-License-Identifier: Apache-2.0

package gencode_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/codec/gencode"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// A person is written as gencode writes it, down to what it does not check.
type person struct {
	Name     string
	Siblings int64
	Married  bool
	Money    float64
	Phones   [2]string
}

func varintSize(t uint64) (n uint64) {
	for n = 1; t >= 0x80; n++ {
		t >>= 7
	}
	return n
}

func putVarint(buf []byte, t uint64) (n uint64) {
	for t >= 0x80 {
		buf[n] = byte(t) | 0x80
		t >>= 7
		n++
	}
	buf[n] = byte(t)
	return n + 1
}

func getVarint(buf []byte) (t, n uint64) {
	bs := uint8(7)
	t = uint64(buf[n] & 0x7F)
	for buf[n]&0x80 == 0x80 {
		n++
		t |= uint64(buf[n]&0x7F) << bs
		bs += 7
	}
	return t, n + 1
}

func zigzag(n int64) uint64 { return uint64(n<<1) ^ uint64(n>>63) }

func (d *person) Size() (s uint64) {
	for _, text := range []string{d.Name, d.Phones[0], d.Phones[1]} {
		s += varintSize(uint64(len(text))) + uint64(len(text))
	}
	return s + varintSize(zigzag(d.Siblings)) + 9
}

func (d *person) Marshal(buf []byte) ([]byte, error) {
	size := d.Size()
	if uint64(cap(buf)) >= size {
		buf = buf[:size]
	} else {
		buf = make([]byte, size)
	}
	i := uint64(0)
	for _, text := range []string{d.Name, d.Phones[0], d.Phones[1]} {
		i += putVarint(buf[i:], uint64(len(text)))
		i += uint64(copy(buf[i:], text))
	}
	i += putVarint(buf[i:], zigzag(d.Siblings))
	buf[i] = 0
	if d.Married {
		buf[i] = 1
	}
	v := math.Float64bits(d.Money)
	for k := range uint64(8) {
		buf[i+1+k] = byte(v >> (8 * k))
	}
	return buf[:i+9], nil
}

func (d *person) Unmarshal(buf []byte) (uint64, error) {
	i := uint64(0)
	for _, text := range []*string{&d.Name, &d.Phones[0], &d.Phones[1]} {
		l, n := getVarint(buf[i:])
		i += n
		*text = string(buf[i : i+l])
		i += l
	}
	t, n := getVarint(buf[i:])
	i += n
	d.Siblings = int64(t >> 1)
	if t&1 != 0 {
		d.Siblings = ^d.Siblings
	}
	d.Married = buf[i] == 1
	v := uint64(0)
	for k := range uint64(8) {
		v |= uint64(buf[i+1+k]) << (8 * k)
	}
	d.Money = math.Float64frombits(v)
	return i + 9, nil
}

func samples() []any {
	return []any{
		&person{Name: "Ada", Siblings: 2, Married: true, Money: 1.5, Phones: [2]string{"123", strings.Repeat("4", 300)}},
		&person{Siblings: math.MinInt64},
	}
}

func TestKeepsTheContract(t *testing.T) { yodeltest.TestCodec(t, gencode.Codec, nil, samples()...) }

func TestDecodeSeesNothingBehindSrc(t *testing.T) {
	const secret = "secret of the next message"
	memory := append([]byte{byte(len(secret))}, secret...)
	var got person
	if err := gencode.Codec.Decode(memory[:1], &got); err == nil || got.Name != "" {
		t.Errorf("got the name %q and error %v, want an error", got.Name, err)
	}
}

// A fixed message is marshalled by the functions in it.
type fixed struct {
	size    uint64
	marshal func([]byte) ([]byte, error)
}

func (f *fixed) Size() uint64                       { return f.size }
func (f *fixed) Marshal(buf []byte) ([]byte, error) { return f.marshal(buf) }
func (f *fixed) Unmarshal(buf []byte) (uint64, error) {
	if string(buf) == unwilling {
		return 0, errUnwilling
	}
	return uint64(len(buf)), nil
}

const unwilling = "unwilling" // a message that Unmarshal refuses

var errUnwilling = errors.New(unwilling)

func TestMarshalMayReturnAnotherBuffer(t *testing.T) {
	f := &fixed{size: 1, marshal: func([]byte) ([]byte, error) { return []byte("elsewhere"), nil }}
	got, err := gencode.Codec.Append([]byte("was:"), f)
	if err != nil || string(got) != "was:elsewhere" {
		t.Errorf("got %q and error %v", got, err)
	}
}

func TestErrorsOfMethodsArePassedOn(t *testing.T) {
	want := errUnwilling
	f := &fixed{marshal: func([]byte) ([]byte, error) { return nil, want }}
	if _, err := gencode.Codec.Append(nil, f); !errors.Is(err, want) {
		t.Errorf("Append: got error %v, want %v", err, want)
	}
	if err := gencode.Codec.Decode([]byte(unwilling), f); !errors.Is(err, want) {
		t.Errorf("Decode: got error %v, want %v", err, want)
	}
}

// A roster and a link are types whose generated methods would allocate what the input announces, or
// follow it to any depth.
type (
	roster struct {
		fixed

		Names []string
	}
	link struct {
		fixed

		Next *link
	}
	sealed struct {
		fixed

		Any any
	}
	booked struct {
		fixed

		At    time.Time
		Seats *[2]string
	}
)

// Types whose size only the input decides are decoded only by Trusting.
func TestTypesOfAnySizeNeedTrust(t *testing.T) {
	for name, v := range map[string]any{"[]string": &roster{}, "link in itself": &link{}, "interface": &sealed{}} {
		if err := gencode.Codec.Decode(nil, v); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "gencode.Trusting") {
			t.Errorf("%T: the error is %v, want one that names %s and gencode.Trusting", v, err, name)
		}
		if err := gencode.Trusting.Decode(nil, v); err != nil {
			t.Errorf("%T with Trusting: %v", v, err)
		}
	}
	if err := gencode.Codec.Decode(nil, &booked{}); err != nil {
		t.Errorf("a type of bounded size: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, sample := range samples() {
		b, err := gencode.Codec.Append(nil, sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		var got person
		if gencode.Codec.Decode(src, &got) != nil {
			return
		}
		b, err := gencode.Codec.Append(nil, &got)
		if err != nil {
			t.Fatal(err)
		}
		var again person
		if err := gencode.Codec.Decode(b, &again); err != nil {
			t.Fatal(err)
		}
		if !math.IsNaN(got.Money) && !reflect.DeepEqual(again, got) {
			t.Fatalf("got %+v, then %+v", got, again)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	message := samples()[0]
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = gencode.Codec.Append(dst[:0], message); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	src, err := gencode.Codec.Append(nil, samples()[0])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := gencode.Codec.Decode(src, new(person)); err != nil {
			b.Fatal(err)
		}
	}
}

// Point has the methods that gencode would generate for two bytes.
type Point struct{ X, Y byte }

func (*Point) Size() uint64 { return 2 }

func (p *Point) Marshal(buf []byte) ([]byte, error) { return append(buf[:0], p.X, p.Y), nil }

func (p *Point) Unmarshal(buf []byte) (uint64, error) {
	p.X, p.Y = buf[0], buf[1] // panics when there are fewer
	return 2, nil
}

func Example() {
	b, err := gencode.Codec.Append(nil, &Point{X: 7, Y: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	var p Point
	fmt.Println(gencode.Codec.Decode(b, &p), p)
	fmt.Println(gencode.Codec.Decode(b[:1], &p))
	// Output:
	// <nil> {7 8}
	// gencode: decode *gencode_test.Point: runtime error: index out of range [1] with length 1
}
