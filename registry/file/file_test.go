// SPDX-License-Identifier: Apache-2.0

package file_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// suite has server and clients share a folder and nothing else, like processes. Where it was is
// something else while it is down.
func suite(t *testing.T, o *registry.Options) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "registry")
	away := folder + ".away"
	must(t, os.Mkdir(folder, 0o755))
	down := func() {
		must(t, os.Rename(folder, away))
		must(t, os.WriteFile(folder, nil, 0o600))
	}
	up := func() {
		must(t, os.Remove(folder))
		must(t, os.Rename(away, folder))
	}
	forget := func(folder string) {
		must(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				err = os.Remove(path)
			}
			if errors.Is(err, fs.ErrNotExist) { // it was a new one, which has its name now
				err = nil
			}
			return err
		}))
	}
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: file.New(folder, o), Another: file.New(folder, o),
		Service: func(name string) discovery.Resolver { return file.New(folder, o).Service(name) },
		Kill:    down, Restart: up, RestartEmpty: func() { forget(away); up() },
		Stop: down, Continue: up, Expire: func() { forget(folder) },
	})
}

func TestRegistry(t *testing.T) { suite(t, nil) }

func TestRegistryInTheLayoutOfRPCX(t *testing.T) {
	suite(t, &registry.Options{Prefix: "/rpcx_test/", Layout: registry.RPCX})
}

func TestRecordsAreFilesToRead(t *testing.T) {
	folder := t.TempDir()
	must(t, file.New(folder, nil).Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:8972", Weight: 2}, time.Minute))
	text, err := os.ReadFile(filepath.Join(folder, "yodel", "Shop", "10.0.0.1:8972"))
	must(t, err)
	if want := `{"addr":"10.0.0.1:8972","weight":2}`; string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
}

func TestNoNameLeadsOutOfTheFolder(t *testing.T) {
	folder := t.TempDir()
	inside := filepath.Join(folder, "inside")
	must(t, os.Mkdir(inside, 0o755))
	r := file.New(inside, &registry.Options{Layout: registry.RPCX})
	for _, name := range []string{"..", "../..", ".", "a/../../..", `..\..`, "\x00"} {
		must(t, r.Announce(t.Context(), name, discovery.Instance{Addr: name}, time.Minute))
	}
	entries, err := os.ReadDir(folder)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("got %v, want one folder", entries)
	}
}

func TestWhatHasEndedIsRemoved(t *testing.T) {
	folder := t.TempDir()
	r := file.New(folder, nil)
	for addr, ttl := range map[string]time.Duration{"a:1": -time.Minute, "a:2": -time.Second, "a:3": time.Minute} {
		must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: addr}, ttl))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var got []discovery.Instance
	must(t, r.Service("Shop").Watch(ctx, func(instances []discovery.Instance) { got = instances; cancel() }))
	if len(got) != 1 || got[0].Addr != "a:3" {
		t.Errorf("got %v, want the one that lives", got)
	}
	// the second one may be renewed yet
	for addr, want := range map[string]bool{"a:1": false, "a:2": true, "a:3": true} {
		if _, err := os.Stat(filepath.Join(folder, "yodel", "Shop", addr)); (err == nil) != want {
			t.Errorf("the file of %s: %v", addr, err)
		}
	}
}

func TestAFolderThatIsGoneIsAnError(t *testing.T) {
	r := file.New(filepath.Join(t.TempDir(), "none"), nil)
	if err := r.Service("Shop").Watch(t.Context(), func([]discovery.Instance) { t.Error("it said something") }); err == nil {
		t.Error("want an error")
	}
}

func TestListKeepsTheContract(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers.json")
	set := func(instances []discovery.Instance) {
		text, err := json.Marshal(instances)
		must(t, err)
		// it may take long to write a file that has been emptied, on a busy disk
		must(t, os.WriteFile(path+".new", text, 0o600))
		must(t, os.Rename(path+".new", path))
	}
	set(nil)
	yodeltest.TestResolver(t, file.List(path), func(instances []discovery.Instance) {
		if instances == nil {
			instances = []discovery.Instance{}
		}
		set(instances)
	}, func() { must(t, os.WriteFile(path, []byte("[{"), 0o600)) })
}

func TestListReadsBothForms(t *testing.T) {
	for text, want := range map[string]any{
		"[]":                           []discovery.Instance{},
		` [{"addr":"a:1","weight":2}]`: []discovery.Instance{{Addr: "a:1", Weight: 2}},
		"# old\na:1\n\n  b:2?weight=2&zone=x&k=v ": []discovery.Instance{{Addr: "a:1"}, {Addr: "b:2", Weight: 2, Zone: "x", Metadata: yodel.Metadata{"k": "v"}}},
		"":                     "it is empty",
		"[{":                   "unexpected end",
		`[{"weight":1}]`:       "instance 1 has no addr",
		"a:1\nb 2":             `line 2: "b 2" is no address`,
		"a:1?weight=many":      "weight",
		"a:1?%zz":              "line 1",
		"# nobody\n#at all":    []discovery.Instance(nil),
		"[fe80::1]:80?zone=x":  "invalid character",
		"tcp://host:1?zone=x ": []discovery.Instance{{Addr: "tcp://host:1", Zone: "x"}},
	} {
		path := filepath.Join(t.TempDir(), "list")
		must(t, os.WriteFile(path, []byte(text), 0o600))
		ctx, cancel := context.WithCancel(t.Context())
		var got any
		err := file.List(path).Watch(ctx, func(instances []discovery.Instance) { got = instances; cancel() })
		if fault, ok := want.(string); ok {
			if err == nil || !strings.Contains(err.Error(), fault) {
				t.Errorf("%q: got %v, want an error that says %q", text, err, fault)
			}
		} else if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %#v, %v, want %#v", text, got, err, want)
		}
	}
}

// TestAnEditedRecordWins edits the record of an instance as a person would, while its server
// announces it again and again. What was set becomes a setting of its own, and stays.
func TestAnEditedRecordWins(t *testing.T) {
	folder := t.TempDir()
	r := file.New(folder, nil)
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{r}, AnnounceEvery: 50 * time.Millisecond, Instance: discovery.Instance{Weight: 5},
		Logger: slog.New(slog.DiscardHandler),
	})
	must(t, s.Handle("Shop.Open", func() error { return nil }))
	l, err := yodel.TCP.Listen("127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		must(t, <-ended)
	}()
	path := filepath.Join(folder, "yodel", "Shop", l.Addr().String())
	record := func() (in discovery.Instance) {
		text, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(text, &in) != nil {
			return discovery.Instance{} // it is not there yet, or being replaced
		}
		return in
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); {
			if time.Now().After(end) {
				t.Fatalf("%s: the record is %+v", what, record())
			}
			runtime.Gosched()
		}
	}
	until("announced", func() bool { return record().Weight == 5 })
	until("edited", func() bool { // an edit between the server's look and its write is lost
		edited := record()
		edited.State, edited.Weight = "inactive", 9
		text, err := json.Marshal(edited)
		must(t, err)
		must(t, os.WriteFile(path, text, 0o600))
		set := setting(t, r)
		return set.State == "inactive" && set.Weight == 9
	})
	until("set in the record", func() bool { return record().State == "inactive" && record().Weight == 9 })
	n, last := 0, time.Time{}
	for n < 20 { // announcements, each of which moves the end of the record
		info, err := os.Stat(path)
		if err != nil || info.ModTime().Equal(last) {
			runtime.Gosched()
			continue
		}
		n, last = n+1, info.ModTime()
		if in := record(); in.Addr != "" && (in.State != "inactive" || in.Weight != 9) {
			t.Fatalf("after %d announcements the record is %+v", n, in)
		}
	}
}

// setting returns the setting for the service once there is one, or nothing after a second.
func setting(t *testing.T, r *registry.Registry) (found discovery.Instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = r.Overrides("Shop").Watch(ctx, func(all []discovery.Instance) { // the context ends it
		if len(all) > 0 {
			found = all[0]
			cancel()
		}
	})
	return found
}
