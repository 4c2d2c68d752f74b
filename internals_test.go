// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/reuse"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A fate is what becomes of a field of a Call in a copy.
type fate int

const (
	_       fate = iota // not decided
	copied              // the same value, or a reference to the same memory
	cloned              // the same contents in other memory
	cleared             // zero
)

// fates says what becomes of each field of a Call in a copy for each purpose. A new field needs a
// decision here and in Call.copyFor.
var fates = map[string][3]fate{
	//                forFork, forDetached, forResend
	"Method":          {copied, copied, copied},
	"Args":            {copied, copied, cleared},
	"Reply":           {cleared, cleared, cleared},
	"Metadata":        {copied, cloned, cloned},
	"Trailer":         {cleared, cleared, copied},
	"Attachment":      {copied, cloned, cleared},
	"ReplyAttachment": {cleared, cleared, copied},
	"Deadline":        {copied, cleared, copied},
	"Codec":           {copied, copied, copied},
	"Compressor":      {copied, copied, copied},
	"Key":             {copied, copied, copied},
	"Ordered":         {cleared, cleared, copied},
	"IdempotencyKey":  {copied, copied, copied},
	"Idempotent":      {copied, copied, copied},
	"NoWait":          {copied, copied, copied},
	"OneWay":          {cleared, cleared, copied},
	"Attempt":         {cleared, cleared, copied},
	"Budget":          {cleared, cleared, copied}, // in budget; for forDetached see TestADetachedCallTakesTheBudgetAlong
	"Criticality":     {copied, copied, copied},
	"Tenant":          {copied, copied, copied},
	"Trace":           {copied, copied, copied},
	"Explain":         {copied, cleared, cleared},
	"Endpoint":        {cleared, copied, copied}, // only if the call is pinned to it
	"out":             {cleared, cleared, copied},
	"picked":          {cleared, cleared, copied},
	"turn":            {cleared, cleared, copied},
	"pass":            {cleared, cleared, copied},
	"stays":           {cleared, cleared, copied},
	"demands":         {cleared, cleared, copied},
	"in":              {cleared, cleared, copied},
	"tried":           {copied, cleared, cloned},
	"stream":          {cleared, cleared, copied},
	"limited":         {cleared, cleared, copied},
	"budget":          {copied, copied, copied},
	"inherited":       {cleared, cleared, copied},
	"group":           {cleared, cleared, copied},
	"rare":            {cleared, cleared, cleared},
	"hold":            {copied, copied, copied},
	"resumed":         {cleared, copied, copied},
	"watch":           {copied, cleared, copied},
	"began":           {copied, cleared, copied},
	"took":            {cleared, cleared, copied},
}

// A batch is the type of foreignCall.inline.
type batch = interface{ More() bool }

// sample returns a value of a type that is not zero.
func sample(t *testing.T, of reflect.Type) reflect.Value {
	t.Helper()
	v := reflect.New(of).Elem()
	switch of {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
		return v
	case reflect.TypeFor[Codec]():
		v.Set(reflect.ValueOf(JSON))
		return v
	case reflect.TypeFor[compress.Compressor]():
		v.Set(reflect.ValueOf(struct{ compress.Compressor }{}))
		return v
	case reflect.TypeFor[Messages]():
		v.Set(reflect.ValueOf(struct{ Messages }{}))
		return v
	case reflect.TypeFor[context.Context]():
		v.Set(reflect.ValueOf(context.Background()))
		return v
	case reflect.TypeFor[batch]():
		v.Set(reflect.ValueOf(struct{ batch }{}))
		return v
	}
	switch of.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int64:
		v.SetInt(2)
	case reflect.Uint8:
		v.SetUint(2)
	case reflect.String:
		v.SetString("text")
	case reflect.Interface:
		v.Set(reflect.ValueOf(new(int)))
	case reflect.Func:
		v.Set(reflect.MakeFunc(of, nil))
	case reflect.Pointer:
		v.Set(reflect.New(of.Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(of, 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(of))
		v.SetMapIndex(sample(t, of.Key()), sample(t, of.Elem()))
	case reflect.Struct:
		for i := range v.NumField() {
			field(v, i).Set(sample(t, v.Field(i).Type()))
		}
	default:
		t.Fatalf("the test has no sample of a %v", of)
	}
	return v
}

// field returns a field of a struct that can be read and set although it is not exported.
func field(v reflect.Value, i int) reflect.Value {
	f := v.Field(i)
	return reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
}

// fateOf returns what has become of a field.
func fateOf(before, after reflect.Value) fate {
	switch {
	case after.IsZero():
		return cleared
	case !reflect.DeepEqual(before.Interface(), after.Interface()):
		return 0
	case before.Kind() == reflect.Map, before.Kind() == reflect.Slice, before.Kind() == reflect.Pointer:
		if before.Pointer() != after.Pointer() {
			return cloned
		}
	}
	return copied
}

func TestEveryFieldOfACallIsDecidedForACopy(t *testing.T) {
	calls := reflect.TypeFor[Call]()
	for name := range fates {
		if _, ok := calls.FieldByName(name); !ok {
			t.Errorf("a Call has no field %s any more", name)
		}
	}
	for p := forFork; p <= forResend; p++ {
		var from, to Call
		before, after := reflect.ValueOf(&from).Elem(), reflect.ValueOf(&to).Elem()
		for i := range calls.NumField() {
			field(before, i).Set(sample(t, calls.Field(i).Type))
			field(after, i).Set(sample(t, calls.Field(i).Type)) // from an earlier use
		}
		from.resumed = from.hold // as for any call with a key that has begun
		from.out.from = new(requester)
		from.copyFor(p, &to)
		for i := range calls.NumField() {
			name := calls.Field(i).Name
			want := fates[name][p]
			if want == 0 {
				t.Errorf("it is not decided what becomes of the field %s in a copy", name)
				break
			}
			if got := fateOf(field(before, i), field(after, i)); got != want {
				t.Errorf("purpose %d: the fate of %s is %d, want %d", p, name, got, want)
			}
		}
	}
}

func TestADetachedCallTakesTheBudgetAlong(t *testing.T) {
	from := Call{Budget: 5, out: &outgoing{from: new(requester)}}
	var to Call
	from.copyFor(forDetached, &to)
	if to.Budget != 5 || to.budget != nil || from.out.readExtra().budget.Left() != 0 {
		t.Errorf("the copy has a budget of %d, and %d are left", to.Budget, from.out.readExtra().budget.Left())
	}
}

func TestADetachedCallIsPinnedAsTheCall(t *testing.T) {
	ep := new(Endpoint)
	for _, test := range []struct {
		from Call
		want *Endpoint
	}{
		{Call{Endpoint: ep, picked: ep}, nil},
		{Call{Endpoint: ep, picked: ep, stays: true}, ep},
		{Call{Endpoint: ep}, ep},
	} {
		test.from.out = &outgoing{from: new(requester)}
		var to Call
		if test.from.copyFor(forDetached, &to); to.Endpoint != test.want {
			t.Errorf("stays %v, picked %v: the copy has the endpoint %p", test.from.stays, test.from.picked != nil, to.Endpoint)
		}
	}
}

// stays says which fields of a Served have the values that they need for Free, or are no longer set
// when a call has ended well. Those with true keep them, or have what Begin sets.
var stays = map[string]bool{
	"in": true, "serverCall": true, "server": true, "protocol": true, "owner": true, "served": true, "handling": true,
	"waiting": true, "first": true, "contexts": true, "held": false, "heirs": false, "err": false, "late": false, "stream": false, "packed": false,
	"counted": false, "method": false, "replied": false, "open": true, "hidden": false, "Instead": false, "Reserved": false,
}

// Free leaves nothing of a call in the memory of the next one. A new field of a Served, a
// serverCall or a foreignCall needs a decision in stays or in Free.
func TestAFreedCallHasNothingOfItsCall(t *testing.T) {
	if reuse.Poison {
		t.Skip("with the race detector, nothing is used again")
	}
	v := new(Served)
	parts := []reflect.Value{reflect.ValueOf(v).Elem(), reflect.ValueOf(&v.in).Elem(), reflect.ValueOf(&v.in.serverCall).Elem()}
	for _, part := range parts {
		for i := range part.NumField() {
			if of := part.Type().Field(i); of.Name != "call" {
				if _, ok := stays[of.Name]; !ok {
					field(part, i).Set(sample(t, of.Type))
				}
			}
		}
	}
	v.in.call.Method, v.in.call.Metadata = "Method", Metadata{"key": "value"}
	v.in.server, v.in.method = &Server{plain: true}, new(method)
	v.in.open.Running.Store(true)
	v.in.open.Stop(true)
	v.Free()
	for _, part := range parts {
		for i := range part.NumField() {
			if of := part.Type().Field(i); !stays[of.Name] && !field(part, i).IsZero() {
				t.Errorf("%v.%s is not zero", part.Type(), of.Name)
			}
		}
	}
	if v.in.open.Running.Load() {
		t.Error("the next call counts as running before it runs")
	}
}

func TestLargeMessagesRaiseTheMemoryOfAConnection(t *testing.T) {
	for _, test := range []struct{ message, want int }{
		{0, 64 << 20}, {1 << 20, 64 << 20}, {16 << 20, 128 << 20}, {math.MaxInt, math.MaxInt / 64 * 8}, {math.MaxInt / 4, math.MaxInt / 64 * 8},
	} {
		limits := Limits{MaxMessage: test.message}
		if got := limits.withDefaults().MaxMemory; got != test.want {
			t.Errorf("with MaxMessage %d, MaxMemory is %d, want %d", test.message, got, test.want)
		}
	}
}

func TestServerNamesItsServices(t *testing.T) {
	named := func(s *Server) (names []string) {
		if err := wire.EachService(s.methods.EncodedServices(), func(name []byte) { names = append(names, string(name)) }); err != nil {
			t.Fatal(err)
		}
		return names
	}
	s := NewServer(nil)
	if got := named(s); got != nil {
		t.Errorf("a server without methods names the services %q", got)
	}
	echo := func(in *int) (*int, error) { return in, nil }
	for _, name := range []string{"Orders.Get", "Orders.Put", "Bare", "pkg.Stock/Take"} {
		if err := s.Handle(name, echo); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprint(named(s)), "[Bare Orders pkg.Stock]"; got != want {
		t.Errorf("the server names the services %s, want %s", got, want)
	}
	id := identity.Of(&wire.Limits{Incarnation: []byte("one"), Services: s.methods.EncodedServices()}, nil)
	for service, want := range map[string]bool{"Orders": true, "Bare": true, "Order": false, "Orders.Get": false} {
		if id.MayBe("another", service) != want {
			t.Errorf("a server with the service %q: got %t, want %t", service, !want, want)
		}
	}
	for i := range wire.MaxServices {
		if err := s.Handle(fmt.Sprintf("S%d.M", i), echo); err != nil {
			t.Fatal(err)
		}
	}
	if got := named(s); got != nil {
		t.Errorf("a list of %d services that is too long was sent in part", len(got))
	}
}

type panickingKeys struct{}

func (panickingKeys) Guard(next Handler) Handler { return next }

func (panickingKeys) Scope() (string, time.Duration) { panic("no name") }

// A server whose KeyMemory panics says that it remembers no keys.
func TestServerSurvivesItsKeyMemory(t *testing.T) {
	s := NewServer(&ServerOptions{Keys: panickingKeys{}, Logger: slog.New(slog.DiscardHandler)})
	if got := s.keyScope(); *got != (keyscope.Scope{}) {
		t.Errorf("the scope is %q for %v, want none", got.Name, got.Keep)
	}
}

// The fields that each call writes share few cache lines: two processors may pass each of them to
// each other in every asynchronous call.
func TestLayout(t *testing.T) {
	if strconv.IntSize != 64 {
		t.Skip("the sizes are those of 64-bit processors")
	}
	const line = 64
	for _, test := range []struct {
		of     reflect.Type
		size   uintptr // at most
		fields []string
	}{
		{reflect.TypeFor[incoming](), 1152, nil}, // with the context of its first call
		{reflect.TypeFor[Served](), 1016, nil},   // beside the 8 bytes that the runtime adds
		{reflect.TypeFor[Call](), 416, []string{"Attempt", "Endpoint", "out", "picked"}},
		{reflect.TypeFor[outgoing](), 1024, []string{"from", "peer", "ctx", "async", "done", "binding"}},
		{reflect.TypeFor[outgoing](), 1024, []string{"body", "packed", "began", "arrived"}},
	} {
		if size := test.of.Size(); size > test.size {
			t.Errorf("%v has %d bytes, more than the %d of its size class", test.of, size, test.size)
		}
		for _, name := range test.fields {
			first, _ := test.of.FieldByName(test.fields[0])
			if f, _ := test.of.FieldByName(name); f.Offset/line != first.Offset/line {
				t.Errorf("%v: %s, at %d, is in another cache line than %s, at %d", test.of, name, f.Offset, first.Name, first.Offset)
			}
		}
	}
}
