// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// full is an instance that says something of everything.
func full() discovery.Instance {
	return discovery.Instance{
		Addr: "10.0.0.1:8972", Protocols: []string{"yodel", "netrpc"}, Group: "red,blue", Version: "v1.2", Weight: 7, Zone: "a", Latitude: -47.5, Longitude: 8.25, State: "inactive",
		Tags: []string{"x", "y z"}, Metadata: yodel.Metadata{"owner": "ö&=;"}, Incarnation: "00ff", Started: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC),
		CallRate: 12.5, Inflight: 3,
	}
}

func TestLayoutsKeepEveryField(t *testing.T) {
	in := full()
	fields := reflect.ValueOf(in)
	for i := range fields.NumField() {
		if fields.Field(i).IsZero() {
			t.Errorf("this test forgets %s", fields.Type().Field(i).Name)
		}
	}
	// All at once, each alone, and nothing but the address.
	instances := []discovery.Instance{in, {Addr: in.Addr}}
	for i := 1; i < fields.NumField(); i++ {
		one := discovery.Instance{Addr: in.Addr}
		reflect.ValueOf(&one).Elem().Field(i).Set(fields.Field(i))
		instances = append(instances, one)
	}
	for _, layout := range []registry.Layout{registry.JSON, registry.RPCX} {
		for _, want := range instances {
			value, err := layout.Value(want)
			must(t, err)
			got, err := layout.Instance(layout.Name(want.Addr), value)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%T: %+v came back as %+v, %v", layout, want, got, err)
			}
		}
	}
}

func TestJSONIsReadByPeople(t *testing.T) {
	value, err := registry.JSON.Value(full())
	must(t, err)
	const want = `{"addr":"10.0.0.1:8972","protocols":["yodel","netrpc"],"group":"red,blue","version":"v1.2","weight":7,"zone":"a","latitude":-47.5,"longitude":8.25,` +
		`"state":"inactive","tags":["x","y z"],"metadata":{"owner":"ö\u0026=;"},"started":"2026-01-02T03:04:05.006Z","incarnation":"00ff","callRate":12.5,"inflight":3}`
	if string(value) != want {
		t.Errorf("got %s\nwant %s", value, want)
	}
}

func TestRPCXLayoutReadsWhatRPCXWrites(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        discovery.Instance
	}{
		{"tcp@127.0.0.1:8972", "", discovery.Instance{Addr: "127.0.0.1:8972", Protocols: []string{"rpcx"}}},
		{"127.0.0.1:8972", "weight=3", discovery.Instance{Addr: "127.0.0.1:8972", Protocols: []string{"rpcx"}, Weight: 3}},
		{
			"tcp@127.0.0.1:8972", "calls=1.52&connections=4.00&group=test&group=canary&latitude=39.9&longitude=116.4&state=active&weight=10",
			discovery.Instance{
				Addr: "127.0.0.1:8972", Protocols: []string{"rpcx"}, Group: "test,canary", Weight: 10, Latitude: 39.9, Longitude: 116.4, State: "active", CallRate: 1.52,
				Metadata: yodel.Metadata{"connections": "4.00"},
			},
		},
		{"tcp@[::1]:8972", "state=inactive&tps=0", discovery.Instance{Addr: "[::1]:8972", Protocols: []string{"rpcx"}, State: "inactive", Metadata: yodel.Metadata{"tps": "0"}}},
		{"quic@127.0.0.1:8972", "k=v+w%26", discovery.Instance{Addr: "127.0.0.1:8972", Protocols: []string{"rpcx+quic"}, Metadata: yodel.Metadata{"network": "quic", "k": "v w&"}}},
		{"http@a:1", "", discovery.Instance{Addr: "a:1", Protocols: []string{"rpcx+http"}, Metadata: yodel.Metadata{"network": "http"}}},
		{"tcp@a:1", "protocol=yodel&protocol=rpcx", discovery.Instance{Addr: "a:1", Protocols: []string{"yodel", "rpcx"}}},
		{"tcp@a:1", "protocol=yodel", discovery.Instance{Addr: "a:1"}},
		{"unix@/tmp/rpcx.socket", "", discovery.Instance{Addr: "/tmp/rpcx.socket", Protocols: []string{"rpcx"}, Metadata: yodel.Metadata{"network": "unix"}}},
	} {
		got, err := registry.RPCX.Instance(test.name, []byte(test.value))
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s %s: got %+v, %v, want %+v", test.name, test.value, got, err, test.want)
		}
	}
}

func TestRPCXLayoutWritesWhatRPCXReads(t *testing.T) {
	value, err := registry.RPCX.Value(full())
	must(t, err)
	const want = "calls=12.5&group=red&group=blue&incarnation=00ff&inflight=3&latitude=-47.5&longitude=8.25&owner=%C3%B6%26%3D%3B&protocol=yodel&protocol=netrpc&started=2026-01-02T03%3A04%3A05.006Z" +
		"&state=inactive&tag=x&tag=y+z&version=v1.2&weight=7&zone=a"
	if string(value) != want || registry.RPCX.Name("10.0.0.1:8972") != "tcp@10.0.0.1:8972" {
		t.Errorf("got %s\nwant %s", value, want)
	}
}

func TestBrokenRecordsAreErrors(t *testing.T) {
	for _, test := range []struct {
		layout            registry.Layout
		name, value, text string
	}{
		{registry.JSON, "a:1", "", "unexpected end"},
		{registry.JSON, "a:1", "[]", "cannot unmarshal"},
		{registry.JSON, "a:1", `{"weight":"7"}`, "weight"},
		{registry.JSON, "a:1", `{}`, "no addr"},
		{registry.JSON, "a:1", `null`, "no addr"},
		{registry.JSON, "a:1", `{"addr":"a:1"`, "unexpected end"},
		{registry.RPCX, "tcp@", "", "no network@address"},
		{registry.RPCX, "", "", "no network@address"},
		{registry.RPCX, "tcp@a:1", "%", "invalid URL escape"},
		{registry.RPCX, "tcp@a:1", "weight=1;group=2", "semicolon"},
		{registry.RPCX, "tcp@a:1", "weight=heavy", "weight"},
		{registry.RPCX, "tcp@a:1", "weight=1e300", "weight"},
		{registry.RPCX, "tcp@a:1", "latitude=NaN", "latitude"},
		{registry.RPCX, "tcp@a:1", "calls=Inf", "calls"},
		{registry.RPCX, "tcp@a:1", "started=today", "today"},
	} {
		in, err := test.layout.Instance(test.name, []byte(test.value))
		if err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%T %s %q: got %+v, %v, want an error that says %q", test.layout, test.name, test.value, in, err, test.text)
		}
	}
}

// A server of rpcx with metadata that nobody understands serves all the same, and rpcx's clients
// call it.
func TestWhatCanBeReadOfARecordIsUsed(t *testing.T) {
	for _, test := range []struct {
		layout      registry.Layout
		name, value string
		want        discovery.Instance
	}{
		{registry.RPCX, "tcp@a:1", "weight=heavy&group=red&latitude=north", discovery.Instance{Addr: "a:1", Protocols: []string{"rpcx"}, Group: "red"}},
		{registry.RPCX, "tcp@a:1", "weight=1;x=2&state=inactive&%zz=1", discovery.Instance{Addr: "a:1", Protocols: []string{"rpcx"}, State: "inactive"}},
		{registry.RPCX, "tcp@a:1", "weight=1e300&k=v", discovery.Instance{Addr: "a:1", Protocols: []string{"rpcx"}, Metadata: yodel.Metadata{"k": "v"}}},
		{registry.RPCX, "a:1", `{"weight":7}`, discovery.Instance{Addr: "a:1", Protocols: []string{"rpcx"}, Metadata: yodel.Metadata{`{"weight":7}`: ""}}},
		{registry.JSON, "a:1", `{"addr":"a:1","weight":"7","zone":"x"}`, discovery.Instance{Addr: "a:1", Zone: "x"}},
	} {
		got, err := test.layout.Instance(test.name, []byte(test.value))
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%T %s: got %+v, %v, want %+v", test.layout, test.value, got, err, test.want)
		}
	}
}

// What metadata has under a name of rpcx's own is not mixed with what the instance itself says.
func TestMetadataDoesNotAddGroupsAndTags(t *testing.T) {
	value, err := registry.RPCX.Value(discovery.Instance{
		Addr: "a:1", Group: "red", Tags: []string{"x"}, Weight: 2, Metadata: yodel.Metadata{"group": "blue", "tag": "y", "weight": "9", "": "&=%;"},
	})
	if want := "=%26%3D%25%3B&group=red&protocol=yodel&tag=x&weight=2"; err != nil || string(value) != want {
		t.Errorf("got %s, %v, want %s", value, err, want)
	}
}

// wantStable wants what was read to be written and read as the same again.
func wantStable(t *testing.T, layout registry.Layout, in discovery.Instance) {
	t.Helper()
	if in.Addr == "" {
		t.Fatal("an instance without an address was read")
	}
	value, err := layout.Value(in)
	must(t, err)
	again, err := layout.Instance(layout.Name(in.Addr), value)
	if err != nil {
		t.Fatalf("%q cannot be read again: %v", value, err)
	}
	if second, err := layout.Value(again); err != nil || string(second) != string(value) {
		t.Errorf("%q is %q the second time, %v", value, second, err)
	}
}

func FuzzJSONInstance(f *testing.F) {
	value, err := registry.JSON.Value(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value)
	f.Add([]byte(`{"addr":"a","started":"0000-01-01T00:00:00+23:59","metadata":{"":""},"tags":[]}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		if in, err := registry.JSON.Instance("", value); err == nil {
			wantStable(t, registry.JSON, in)
		}
	})
}

func FuzzRPCXInstance(f *testing.F) {
	value, err := registry.RPCX.Value(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add("tcp@10.0.0.1:8972", value)
	f.Add("quic@a", []byte("group=,&tag=&weight=-0&latitude=-0&network=x"))
	f.Add("a@b@c", []byte("started=2026-01-02T03:04:05%2B01:00&&=&k"))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		if in, err := registry.RPCX.Instance(name, value); err == nil {
			wantStable(t, registry.RPCX, in)
		}
	})
}
