// SPDX-License-Identifier: Apache-2.0

package valuetable

import (
	"bytes"
	"container/list"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"net/mail"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Types with methods of their own. Most names say which methods they have: M is a method that
// encodes, U one that decodes.
type (
	muText      struct{ N int }
	muBinary    struct{ N int }
	muGob       struct{ N int }
	muJSON      struct{ N int }
	mText       struct{ N int }
	mJSON       struct{ N int }
	uText       struct{ N int }
	uTextString string
	uTextInt    int
	uJSON       struct{ N int }
	uBinary     struct{ N int }
	uGob        struct{ N int }
	uTextMUJSON struct{ N int } // MarshalJSON, UnmarshalJSON, UnmarshalText
	muTextUJSON struct{ N int } // MarshalText, UnmarshalText, UnmarshalJSON
	muTextUBin  struct{ N int }
	byValue     struct{ N int }    // UnmarshalText and UnmarshalJSON have a value as receiver
	emptyBinary struct{ N int }    // 0 is no bytes
	emptyText   struct{ N int }    // 0 is no bytes
	oddEmpty    struct{ N int }    // 7 is no bytes
	nullJSON    struct{ N int }    // 0 is null
	badText     struct{ S string } // text that may not be UTF-8
	badJSON     struct{ S string } // the same in JSON
	folded      struct{ S string } // whose text is in lower case
	foldedBin   struct{ S string }
	foldedGob   struct{ S string }
	listText    []int
	mapText     map[string]int
	byPointer   struct{ N int }
)

func number(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }

func parseNumber(n *int, b []byte) (err error) {
	*n, err = strconv.Atoi(string(b))
	return err
}

func orNothing(n, nothing int) []byte {
	if n == nothing {
		return nil
	}
	return number(n)
}

func parseOr(n *int, nothing int, b []byte) error {
	if len(b) == 0 {
		*n = nothing
		return nil
	}
	return parseNumber(n, b)
}

func (v muText) MarshalText() ([]byte, error)      { return number(v.N), nil }
func (v *muText) UnmarshalText(b []byte) error     { return parseNumber(&v.N, b) }
func (v muBinary) MarshalBinary() ([]byte, error)  { return number(v.N), nil }
func (v *muBinary) UnmarshalBinary(b []byte) error { return parseNumber(&v.N, b) }
func (v muGob) GobEncode() ([]byte, error)         { return number(v.N), nil }
func (v *muGob) GobDecode(b []byte) error          { return parseNumber(&v.N, b) }
func (v muJSON) MarshalJSON() ([]byte, error)      { return number(v.N), nil }
func (v *muJSON) UnmarshalJSON(b []byte) error     { return parseNumber(&v.N, b) }
func (v mText) MarshalText() ([]byte, error)       { return number(v.N), nil }
func (v mJSON) MarshalJSON() ([]byte, error)       { return number(v.N), nil }
func (v *uText) UnmarshalText(b []byte) error      { return parseNumber(&v.N, b) }
func (v *uTextString) UnmarshalText(b []byte) error {
	*v = uTextString(strings.ToUpper(string(b)))
	return nil
}
func (v *uTextInt) UnmarshalText(b []byte) error      { return parseNumber((*int)(v), b) }
func (v *uJSON) UnmarshalJSON(b []byte) error         { return parseNumber(&v.N, b) }
func (v *uBinary) UnmarshalBinary(b []byte) error     { return parseNumber(&v.N, b) }
func (v *uGob) GobDecode(b []byte) error              { return parseNumber(&v.N, b) }
func (v uTextMUJSON) MarshalJSON() ([]byte, error)    { return number(v.N), nil }
func (v *uTextMUJSON) UnmarshalJSON(b []byte) error   { return parseNumber(&v.N, b) }
func (v *uTextMUJSON) UnmarshalText(b []byte) error   { return errors.New("not called") }
func (v muTextUJSON) MarshalText() ([]byte, error)    { return number(v.N), nil }
func (v *muTextUJSON) UnmarshalText(b []byte) error   { return parseNumber(&v.N, b) }
func (v *muTextUJSON) UnmarshalJSON(b []byte) error   { v.N = len(b); return nil }
func (v muTextUBin) MarshalText() ([]byte, error)     { return number(v.N), nil }
func (v *muTextUBin) UnmarshalText(b []byte) error    { return parseNumber(&v.N, b) }
func (v *muTextUBin) UnmarshalBinary(b []byte) error  { v.N = len(b); return nil }
func (v byValue) MarshalText() ([]byte, error)        { return number(v.N), nil }
func (v byValue) UnmarshalText(b []byte) error        { return parseNumber(&v.N, b) }
func (v byValue) MarshalJSON() ([]byte, error)        { return number(v.N), nil }
func (v byValue) UnmarshalJSON(b []byte) error        { return parseNumber(&v.N, b) }
func (v byValue) MarshalBinary() ([]byte, error)      { return number(v.N), nil }
func (v byValue) UnmarshalBinary(b []byte) error      { return parseNumber(&v.N, b) }
func (v emptyBinary) MarshalBinary() ([]byte, error)  { return orNothing(v.N, 0), nil }
func (v *emptyBinary) UnmarshalBinary(b []byte) error { return parseOr(&v.N, 0, b) }
func (v emptyText) MarshalText() ([]byte, error)      { return orNothing(v.N, 0), nil }
func (v *emptyText) UnmarshalText(b []byte) error     { return parseOr(&v.N, 0, b) }
func (v oddEmpty) MarshalText() ([]byte, error)       { return orNothing(v.N, 7), nil }
func (v *oddEmpty) UnmarshalText(b []byte) error      { return parseOr(&v.N, 7, b) }
func (v oddEmpty) MarshalBinary() ([]byte, error)     { return orNothing(v.N, 7), nil }
func (v *oddEmpty) UnmarshalBinary(b []byte) error    { return parseOr(&v.N, 7, b) }
func (v badText) MarshalText() ([]byte, error)        { return []byte(v.S), nil }
func (v *badText) UnmarshalText(b []byte) error       { v.S = string(b); return nil }
func (v badJSON) MarshalJSON() ([]byte, error)        { return []byte(`"` + v.S + `"`), nil }
func (v *badJSON) UnmarshalJSON(b []byte) error       { v.S = string(bytes.Trim(b, `"`)); return nil }
func (v folded) MarshalText() ([]byte, error)         { return []byte(strings.ToLower(v.S)), nil }
func (v *folded) UnmarshalText(b []byte) error        { v.S = string(b); return nil }
func (v foldedBin) MarshalBinary() ([]byte, error)    { return []byte(strings.ToLower(v.S)), nil }
func (v *foldedBin) UnmarshalBinary(b []byte) error   { v.S = string(b); return nil }
func (v foldedGob) GobEncode() ([]byte, error)        { return []byte(strings.ToLower(v.S)), nil }
func (v *foldedGob) GobDecode(b []byte) error         { v.S = string(b); return nil }
func (v listText) MarshalText() ([]byte, error) {
	return []byte(strings.Trim(fmt.Sprint([]int(v)), "[]")), nil
}
func (v mapText) MarshalText() ([]byte, error) { return number(len(v)), nil }
func (v *mapText) UnmarshalText(b []byte) error {
	*v = mapText{}
	n, err := strconv.Atoi(string(b))
	for i := range n {
		(*v)[strconv.Itoa(i)] = 0
	}
	return err
}
func (v *byPointer) MarshalText() ([]byte, error) { return number(v.N), nil }
func (v *byPointer) UnmarshalText(b []byte) error { return parseNumber(&v.N, b) }

func (v *listText) UnmarshalText(b []byte) error {
	*v = listText{}
	for f := range strings.FieldsSeq(string(b)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return err
		}
		*v = append(*v, n)
	}
	return nil
}

func (v nullJSON) MarshalJSON() ([]byte, error) {
	if v.N == 0 {
		return []byte("null"), nil
	}
	return number(v.N), nil
}

func (v *nullJSON) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		v.N = 0
		return nil
	}
	return parseNumber(&v.N, b)
}

// Types that are embedded, and structs that embed them.

type (
	// Point is exported, and embedded.
	Point struct {
		X, Y int `pb:"1" thrift:"1"`
	}
	open    struct{ X int }
	deeper  struct{ open }
	secret  struct{ x int }
	nothing struct{}
	// Nothing is exported, and embedded.
	Nothing struct{}
	quiet   struct {
		X int `json:",omitempty" msgpack:",omitempty"`
	}
	// Quiet is exported, and embedded.
	Quiet struct {
		X int `json:",omitempty" msgpack:",omitempty"`
	}
	iface   interface{ String() string } //nolint:iface // one of the two is not exported
	anyface any
	// Iface is exported, and embedded.
	Iface interface{ String() string } //nolint:iface // as above
	// Coded is exported, and embedded.
	Coded interface {
		MarshalJSON() ([]byte, error)
		UnmarshalJSON(b []byte) error
	}
	num int
	// Num is exported, and embedded.
	Num   int
	words []string
	// Words is exported, and embedded.
	Words []string
	table map[string]int
	call  func()
	who   string

	withIface struct {
		iface
		A int
	}
	withAny struct {
		anyface
		A int
	}
	withExported struct {
		Iface
		A int
	}
	withCoded struct{ Coded }
	withError struct {
		error
		A int
	}
	withNum struct {
		num
		A int
	}
	withNumTag struct {
		num `json:"num" msgpack:"num" hessian:"num"`
		A   int
	}
	withNumPtr struct {
		*num
		A int
	}
	withExpNum struct {
		Num
		A int
	}
	withExpNumPtr struct {
		*Num
		A int
	}
	withWords struct {
		words
		A int
	}
	withExpWords struct {
		Words
		A int
	}
	withTable struct {
		table
		A int
	}
	withCall struct {
		call
		A int
	}
	withWho struct {
		who
		A int
	}
	withOpen struct {
		open
		A int
	}
	withOpenPtr struct {
		*open
		A int
	}
	withDeeper struct {
		deeper
		A int
	}
	withDeeperPtr struct {
		*deeper
		A int
	}
	withSecret struct {
		secret
		A int
	}
	withSecretPtr struct {
		*secret
		A int
	}
	withNothing struct {
		nothing
		A int
	}
	withNothPtr struct {
		*nothing
		A int
	}
	withExpNoth struct {
		*Nothing
		A int
	}
	withQuiet struct {
		Quiet
		A int
	}
	withQuietPtr struct {
		*Quiet
		A int
	}
	withquietPtr struct {
		*quiet
		A int
	}
	withBigInt    struct{ *big.Int }
	withURL       struct{ *url.URL }
	withMuText    struct{ muText }
	withMuTextPtr struct{ *muText }
	withTime      struct{ *time.Time }
	withTag       struct {
		open `json:"o" msgpack:"o" hessian:"o"`
		A    int
	}
	ignored struct {
		iface `json:"-" msgpack:"-" hessian:"-"`
		A     int
	}
	oddTag struct {
		A int `json:"x\\\\"` //nolint:staticcheck // SA5008: encoding/json takes it for none
		B int
		C int `json:"A"`
	}
	partly struct {
		A int `pb:"1" thrift:"1"`
		b int
	}
	partlyNot struct {
		A int `pb:"1" thrift:"1"`
		B int `json:"-" msgpack:"-" hessian:"-" thrift:"-" pb:"-"`
	}
	quoted struct {
		A json.Number `json:",string"`
		B int         `json:",string"`
		C string      `json:",string"`
		D *int        `json:",string"`
	}
	caseless struct{ Ab, AB, AbC int }
)

func (n num) String() string { return strconv.Itoa(int(n)) }

// of makes a list of values.
func of[T any](values ...T) []any {
	all := make([]any, 0, len(values))
	for _, v := range values {
		all = append(all, v)
	}
	return all
}

// leaves returns lists of values. Each list has values of one type.
func leaves() [][]reflect.Value {
	var all [][]reflect.Value
	for _, list := range slices.Concat(scalars(), opaque(), own(), structs(), embedding()) {
		values := make([]reflect.Value, len(list))
		for i, v := range list {
			values[i] = reflect.ValueOf(v)
		}
		all = append(all, values)
	}
	return all
}

func scalars() [][]any {
	return [][]any{
		of(true, false), of(1, math.MinInt, 0), of[int8](-128), of[int16](math.MinInt16), of[int32](-5), of[uint](1), of[uint8](200),
		of[uint16](9), of[uint32](1 << 31), of[uint64](math.MaxUint64, 1<<40), of[uintptr](3), of[float32](0, math.MaxFloat32, -1.5),
		of(0, math.Copysign(0, -1), math.NaN(), math.Inf(1), 1.5, 1e300, float64(1<<53+2)), of(complex(1, 2)),
		of("", "a", "a\xff", "\ufffd", "\u2028<&", "a\x00"), of([]byte(nil), []byte{}, []byte("a\xff")), of([2]byte{1, 2}), of([16]byte{1}),
		of([0]int{}), of(struct{}{}), of[num](7), of[who]("a", "\xff"), of(words(nil), words{}, words{"a", "\xff"}), of(table(nil), table{}, table{"a": 1}),
		of(json.Number(""), json.Number("1"), json.Number("1.50e3"), json.Number("x")),
		of(json.RawMessage(nil), json.RawMessage{}, json.RawMessage(`null`), json.RawMessage(`{"a": 1}`), json.RawMessage("\"\xff\""), json.RawMessage(`"\ud800"`), json.RawMessage(`{`)),
	}
}

func opaque() [][]any {
	at := time.Date(2026, 11, 27, 12, 30, 15, 123456789, time.UTC)
	return [][]any{
		of(time.Time{}, at, at.In(time.FixedZone("", 3600)), at.In(time.FixedZone("", 3601)), at.AddDate(10000, 0, 0), at.Add(-1)), of(time.Duration(0), time.Hour+1),
		of(*big.NewInt(0), *big.NewInt(5), *big.NewInt(-5)), of(*big.NewRat(0, 1), *big.NewRat(1, 3)), of(*big.NewFloat(0), *big.NewFloat(0.5)),
		of(netip.Addr{}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fe80::1%\xff")),
		of(netip.Prefix{}, netip.MustParsePrefix("10.0.0.0/8")), of(netip.AddrPort{}, netip.MustParseAddrPort("[::1]:80")),
		of(net.IP(nil), net.IP{}, net.IPv4(10, 0, 0, 1)), of(net.HardwareAddr{1, 2}), of(url.URL{}, url.URL{Scheme: "http", Host: "a", Path: "/b"}),
		of(slog.LevelInfo, slog.LevelError+1), of(sql.NullString{}, sql.NullString{String: "a", Valid: true}), of(sql.NullTime{}, sql.NullTime{Time: at, Valid: true}),
		of(*regexp.MustCompile(""), *regexp.MustCompile("a.*")), of(url.Values{"a": {"b"}}, url.Values(nil)), of(http.Header{"A": nil}), of(mail.Address{Name: "a"}),
		of(net.IPNet{IP: net.IPv4(1, 2, 3, 4), Mask: net.CIDRMask(8, 32)}), of(net.TCPAddr{Port: 5}), of(*rand.NewPCG(1, 2)), of(bytes.Buffer{}), of(list.List{}), of(errors.New("a")),
	}
}

func own() [][]any {
	return [][]any{
		of(muText{}, muText{5}), of(muBinary{}, muBinary{5}), of(muGob{}, muGob{5}), of(muJSON{}, muJSON{5}), of(mText{}, mText{5}), of(mJSON{}, mJSON{5}),
		of(uText{}, uText{5}), of(uTextString("a")), of(uTextInt(5)), of(uJSON{}, uJSON{5}), of(uBinary{}, uBinary{5}), of(uGob{}, uGob{5}),
		of(uTextMUJSON{5}), of(muTextUJSON{5}), of(muTextUBin{5}), of(byValue{5}), of(byPointer{}, byPointer{5}),
		of(emptyBinary{}, emptyBinary{5}), of(emptyText{}, emptyText{5}), of(oddEmpty{}, oddEmpty{7}, oddEmpty{5}), of(nullJSON{}, nullJSON{5}),
		of(badText{}, badText{"a"}, badText{"a\xff"}), of(badJSON{}, badJSON{"a"}, badJSON{"a\xff"}),
		of(folded{"a"}, folded{"b"}), of(folded{"a"}, folded{"A"}), of(foldedBin{"a"}, foldedBin{"A"}), of(foldedGob{"a"}, foldedGob{"A"}),
		of(listText(nil), listText{}, listText{1, 2}), of(mapText(nil), mapText{}, mapText{"0": 0}),
	}
}

func structs() [][]any {
	return [][]any{
		of(Point{}, Point{1, 2}), of(partly{}, partly{1, 2}, partly{1, 3}), of(partlyNot{1, 2}, partlyNot{1, 3}), of(caseless{1, 2, 3}), of(oddTag{1, 2, 3}),
		of(quoted{}, quoted{"1", 2, "\"", new(3)}),
	}
}

func embedding() [][]any {
	return [][]any{
		of(withIface{num(1), 2}), of(withAny{"a", 2}), of(withExported{num(1), 2}, withExported{}), of(withCoded{}), of(withError{errors.New("a"), 2}),
		of(withNum{1, 2}), of(withNumTag{1, 2}), of(withNumPtr{new(num(1)), 2}), of(withExpNum{1, 2}), of(withExpNumPtr{new(Num(1)), 2}, withExpNumPtr{}),
		of(withWords{words{"a"}, 2}), of(withExpWords{Words{"a"}, 2}), of(withTable{table{"a": 1}, 2}), of(withCall{nil, 2}), of(withWho{"a", 2}),
		of(withOpen{open{1}, 2}), of(withOpenPtr{&open{1}, 2}, withOpenPtr{}), of(withDeeper{deeper{open{1}}, 2}), of(withDeeperPtr{&deeper{open{1}}, 2}),
		of(withSecret{secret{1}, 2}), of(withSecretPtr{&secret{1}, 2}), of(withNothing{nothing{}, 2}), of(withNothPtr{nil, 2}, withNothPtr{&nothing{}, 2}),
		of(withExpNoth{nil, 2}, withExpNoth{&Nothing{}, 2}), of(withQuiet{Quiet{0}, 2}), of(withQuietPtr{&Quiet{0}, 2}, withQuietPtr{&Quiet{1}, 2}, withQuietPtr{nil, 2}), of(withquietPtr{&quiet{0}, 2}),
		of(withBigInt{}, withBigInt{big.NewInt(5)}), of(withURL{}, withURL{&url.URL{Path: "a"}}), of(withMuText{muText{5}}), of(withMuTextPtr{}, withMuTextPtr{&muText{5}}),
		of(withTime{}, withTime{new(time.Unix(1, 0).UTC())}), of(withTag{open{1}, 2}), of(ignored{nil, 2}),
	}
}
