// SPDX-License-Identifier: Apache-2.0

package dubborecord_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/internal/dubborecord"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

var server = discovery.Instance{
	Addr: "10.0.0.1:20880", Protocols: []string{"yodel", "http", "dubbo"}, Version: "1.0.0", Group: "blue", Weight: 2, State: "inactive", Zone: "a",
	Metadata: yodel.Metadata{"a": "b&c"}, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Incarnation: "x",
}

// What is written as a URL of any protocol is the instance again.
func TestURLs(t *testing.T) {
	p, err := dubborecord.NewProvider("app", "com.acme.Greeter", server)
	if err != nil {
		t.Fatal(err)
	}
	urls, err := p.URLs()
	if err != nil || len(urls) != 2 {
		t.Fatalf("got %q, %v", urls, err)
	}
	for i, scheme := range []string{"dubbo", "tri"} {
		for _, part := range []string{scheme + "://10.0.0.1:20880/com.acme.Greeter?", "version=1.0.0", "group=blue", "weight=200", "disabled=true", "application=app", "interface=com.acme.Greeter"} {
			if !strings.Contains(urls[i], part) {
				t.Errorf("%s does not have %q", urls[i], part)
			}
		}
		if has := strings.Contains(urls[i], "serialization=hessian2"); has != (scheme == "dubbo") {
			t.Errorf("%s says that its serialization is Hessian 2: %v", scheme, has)
		}
		got, ok, err := dubborecord.ParseURL(urls[i], dubborecord.ParseKey("blue/com.acme.Greeter:1.0.0"))
		if !ok || err != nil || !reflect.DeepEqual(got, server) {
			t.Errorf("got %+v, %v, %v, want %+v", got, ok, err, server)
		}
	}
	for _, other := range []string{"red/com.acme.Greeter", "com.acme.Greeter:2.0.0"} {
		if _, ok, err := dubborecord.ParseURL(urls[0], dubborecord.ParseKey(other)); ok || err != nil {
			t.Errorf("%s: got %v, %v", other, ok, err)
		}
	}
}

// The URLs of providers of Dubbo.
func TestForeignURLs(t *testing.T) {
	for text, want := range map[string]discovery.Instance{
		"dubbo://10.0.0.2:20880/a.B?application=x&version=1.0&weight=50":                     {Addr: "10.0.0.2:20880", Protocols: []string{"dubbo"}, Version: "1.0", Weight: 50, Metadata: yodel.Metadata{"application": "x"}},
		"tri://10.0.0.2:50051/a.B?group=g&enabled=false":                                     {Addr: "10.0.0.2:50051", Protocols: []string{"grpc"}, Group: "g", Weight: 100, State: "inactive", Metadata: yodel.Metadata{"enabled": "false"}},
		"rest://[::1]:8080/a.B?weight=x":                                                     {Addr: "[::1]:8080", Protocols: []string{"rest"}, Weight: 100, Metadata: yodel.Metadata{}},
		"dubbo://10.0.0.2:1/a.B?weight=0":                                                    {Addr: "10.0.0.2:1", Protocols: []string{"dubbo"}, State: "inactive", Metadata: yodel.Metadata{}},
		"dubbo://10.0.0.2:1/a.B?weight=0&release=dubbo-golang-3.3.2":                         {Addr: "10.0.0.2:1", Protocols: []string{"dubbo"}, Weight: 100, Metadata: yodel.Metadata{"release": "dubbo-golang-3.3.2"}},
		"dubbo://10.0.0.3:1/a.B?yodel=%7B%22addr%22%3A%22x%3A1%22%2C%22zone%22%3A%22z%22%7D": {Addr: "10.0.0.3:1", Zone: "z"},
	} {
		got, ok, err := dubborecord.ParseURL(text, dubborecord.Key{Interface: "a.B"})
		if !ok || err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, %v, want %+v", text, got, ok, err, want)
		}
	}
	for _, text := range []string{"%", "dubbo://host/a.B", "dubbo://a:1/a.B?yodel=%7B"} {
		if got, ok, err := dubborecord.ParseURL(text, dubborecord.Key{}); ok || err == nil {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	if _, ok, err := dubborecord.ParseURL("consumer://a:1/a.B?category=consumers", dubborecord.Key{}); ok || err != nil {
		t.Errorf("a consumer: got %v, %v", ok, err)
	}
}

// An application has the same instances as the URLs.
func TestApplications(t *testing.T) {
	var providers []*dubborecord.Provider
	for _, name := range []string{"com.acme.Greeter", "com.acme.Other"} {
		p, err := dubborecord.NewProvider("app", name, server)
		if err != nil {
			t.Fatal(err)
		}
		providers = append(providers, p)
	}
	a, err := dubborecord.NewApplication(providers)
	if err != nil {
		t.Fatal(err)
	}
	about, err := a.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	of, err := a.InstanceMetadata()
	if err != nil || of[dubborecord.KeyRevision] != a.Revision || a.Revision == "" {
		t.Fatalf("got %v, %v", of, err)
	}
	want := server
	want.Started, want.Incarnation = time.Time{}, "" // instances share the metadata
	got, err := dubborecord.Instances(dubborecord.ParseKey("com.acme.Greeter"), "10.0.0.1", of, about)
	if err != nil || len(got) != 2 || !reflect.DeepEqual(dubborecord.Merge(got), []discovery.Instance{want}) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err = dubborecord.Instances(dubborecord.ParseKey("com.acme.Greeter:2"), "10.0.0.1", of, about); err != nil || len(got) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	// Without metadata, the ports are all that is known.
	got, err = dubborecord.Instances(dubborecord.Key{Interface: "a.B"}, "10.0.0.1", of, nil)
	if err != nil || len(got) != 2 || got[0].Addr != server.Addr || got[0].Protocols[0] != "dubbo" {
		t.Errorf("got %+v, %v", got, err)
	}
	again, err := dubborecord.NewApplication(providers[:1])
	if err != nil || again.Revision == a.Revision {
		t.Errorf("got the revision %s twice, %v", again.Revision, err)
	}
	if _, err := dubborecord.Instances(dubborecord.Key{}, "h", of, []byte("{")); err == nil {
		t.Error("damaged metadata are no error")
	}
	if _, err := dubborecord.Instances(dubborecord.Key{}, "h", nil, nil); err == nil {
		t.Error("damaged ports are no error")
	}
}

func TestWhatDubboHasNot(t *testing.T) {
	for says, in := range map[string]discovery.Instance{
		"missing port":                   {Addr: "x"},
		"has no port that is a number":   {Addr: "x:http", Protocols: []string{"dubbo"}},
		"a provider of Dubbo has one":    {Addr: "x:1", Protocols: []string{"dubbo"}, Group: "a,b"},
		dubborecord.ErrProtocols.Error(): {Addr: "x:1", Protocols: []string{"yodel"}},
	} {
		if _, err := dubborecord.NewProvider("app", "a.B", in); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error with %q", err, says)
		}
	}
	_, err := dubborecord.NewProvider("app", "a.B", discovery.Instance{Addr: "x:1"})
	if !errors.Is(err, dubborecord.ErrProtocols) {
		t.Errorf("got %v", err)
	}
}

func TestKeys(t *testing.T) {
	for name, want := range map[string]dubborecord.Key{
		"a.B": {Interface: "a.B"}, "g/a.B": {Interface: "a.B", Group: "g"}, "a.B:1": {Interface: "a.B", Version: "1"}, "g/a.B:1": {Interface: "a.B", Group: "g", Version: "1"},
	} {
		if got := dubborecord.ParseKey(name); got != want || got.String() != name {
			t.Errorf("%s: got %+v, %q", name, got, got.String())
		}
	}
}

// Records of other programs are read or refused.
func FuzzRecords(f *testing.F) {
	f.Add("dubbo://10.0.0.2:20880/a.B?application=x&version=1.0&weight=50", `{"services":{"a.B:dubbo":{"name":"a.B","protocol":"dubbo","port":1}}}`)
	f.Add("tri://h:1/a.B?yodel=%7B%7D", `{"services":{"a.B:tri":{"name":"a.B","params":{"yodel":"{}"}}}}`)
	f.Fuzz(func(t *testing.T, text, about string) {
		k := dubborecord.Key{Interface: "a.B"}
		if in, ok, err := dubborecord.ParseURL(text, k); ok && (err != nil || in.Addr == "") {
			t.Errorf("got %+v, %v", in, err)
		}
		all, err := dubborecord.Instances(k, "h", map[string]string{"dubbo.endpoints": about}, []byte(about))
		for _, in := range dubborecord.Merge(all) {
			if in.Addr == "" {
				t.Errorf("got %+v, %v", in, err)
			}
		}
		_, _ = dubborecord.Instances(k, "h", map[string]string{"dubbo.endpoints": about}, nil) // must not panic
	})
}
