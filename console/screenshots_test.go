// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
)

var screenshots = flag.String("screenshots", "", "write the pictures of the README into this `folder`")

// A portrait is a reader of a small fleet that is always the same, for pictures of it.
type portrait struct{ client *yodel.Client }

func (p *portrait) Client(string) *yodel.Client { return p.client }
func (p *portrait) Close()                      { p.client.Close() }

const ejectedWhy = "outlier: 5 calls in a row failed; it is tried again in 20s, by 2 of 2 clients"

// Read returns a shop of six services. One instance of Pay fails.
func (p *portrait) Read(context.Context, ...string) (*fleet.View, error) {
	v := &fleet.View{At: time.Now()}
	add := func(name string, instances int, rate float64, problems []fleet.Problem, callers ...string) {
		s := &fleet.Service{Name: name, State: fleet.Healthy, Problems: problems, Up: instances}
		s.Versions = []fleet.Version{{Version: "v1.4.0", Share: 1}}
		s.Traffic = portraitTraffic(rate, len(v.Services))
		if problems != nil {
			s.State = fleet.Degraded
			s.Traffic.Failed, s.Traffic.Errors = 0.061, map[string]float64{"internal": 0.061 * rate}
		}
		for i := range instances {
			in := &fleet.Instance{
				Instance: discovery.Instance{Addr: fmt.Sprintf("10.0.%d.%d:8972", len(v.Services)+1, i+1), Version: "v1.4.0", Zone: string(rune('a' + i))},
				Service:  name, State: fleet.Up, Traffic: portraitTraffic(rate/float64(instances), i),
			}
			in.Live = &introspect.Live{Now: v.At, Step: time.Second, Name: name, Process: introspect.Process{Started: v.At.Add(-26 * time.Hour)}}
			in.Started = in.Live.Process.Started
			s.Instances = append(s.Instances, in)
		}
		if problems != nil {
			bad := s.Instances[instances-1]
			bad.State, bad.Why = fleet.Ejected, ejectedWhy
			s.Up--
			v.Events = append(v.Events,
				introspect.Event{At: v.At.Add(-12 * time.Minute), Kind: "start", Object: bad.Addr, What: "listening"},
				introspect.Event{At: v.At.Add(-11 * time.Minute), Kind: "instance up", Object: bad.Addr, What: "an instance of " + name + ": the resolver names it", By: "resolver"},
				introspect.Event{At: v.At.Add(-40 * time.Second), Kind: "not ready", Object: bad.Addr, What: bad.Why, By: "outlier"},
			)
		}
		for _, caller := range callers {
			s.Callers = append(s.Callers, fleet.Caller{Name: caller, Traffic: portraitTraffic(rate/float64(len(callers)), len(v.Services))})
		}
		s.Methods = []fleet.Method{{Method: introspect.Method{Name: name + ".Get"}, Traffic: s.Traffic}}
		v.Services = append(v.Services, s)
	}
	add("shop.Pay", 3, 320, []fleet.Problem{
		{Kind: "ejected", Severity: fleet.Warn, Args: []string{"1", "3", "10.0.1.3:8972: " + ejectedWhy + " (for 40s)"}},
		{Kind: "failing", Severity: fleet.Warn, Args: []string{"6.1 %", "internal"}},
	}, "shop.Cart", "shop.Orders")
	add("shop.Cart", 4, 1240, nil, "web", "mobile")
	add("shop.Orders", 3, 410, nil, "web")
	add("shop.Stock", 2, 890, nil, "shop.Cart", "shop.Orders")
	add("shop.Mail", 2, 35, nil, "shop.Orders")
	add("shop.Search", 3, 2150, nil, "web", "mobile")
	return v, nil
}

// portraitTraffic returns the calls of a minute with a rate. The seed makes charts differ.
func portraitTraffic(rate float64, seed int) fleet.Traffic {
	t := fleet.Traffic{Known: true, Span: time.Minute, Rate: rate, Step: time.Second, Points: make([]float64, 59), P50: 900 * time.Microsecond, P90: 4 * time.Millisecond, P99: time.Duration(9+3*seed) * time.Millisecond}
	for i := range t.Points {
		t.Points[i] = rate * (0.9 + 0.2*float64((i*i+7*seed+3*i)%11)/10)
	}
	return t
}

// looks is what a picture depends on, without the machine's fonts and the time: the elements of the
// page with their texts, whose numbers do not count, and the style rules that apply to them.
const looks = `document.getElementById("app").outerHTML.replace(/[\d.]+/g, "0") + [...document.styleSheets].flatMap(function rules(sheet) {
	return [...sheet.cssRules].flatMap(r => {
		if (r.media) return matchMedia(r.media.mediaText).matches ? rules(r) : [];
		const plain = r.selectorText?.replace(/::?[a-z-]+(?![a-z-]*\()/g, "").trim();
		return plain && document.querySelector(plain.split(",").filter(s => s.trim()).join() || "html") ? [r.cssText] : [];
	});
}).join("\n")`

// TestScreenshots shows the screens that the README has pictures of, and fails if a page has
// changed since its picture was made. With -screenshots it makes the pictures, and writes what
// they show into made.txt beside them:
//
//	YODEL_REAL=1 go test ./console -run TestScreenshots -screenshots "$PWD/docs/images"
func TestScreenshots(t *testing.T) {
	b := newBrowser(t)
	c := newConsole(t, &shop{registry: memory.New(nil)}, nil)
	c.fleet.open = func(time.Duration) reader { return &portrait{yodel.NewClient(discovery.Static(), nil)} }
	base := serveConsole(t, c)
	b.enter(c, base, "shop.Pay")
	const folder = "../docs/images"
	var made strings.Builder
	for _, picture := range []struct {
		name, path, theme, want string
		height                  int
	}{
		{"overview", "/", "light", "1 of 6 services", 640},
		{"topology", "/topology?focus=shop.Cart&hops=2", "dark", "shop.Stock", 380},
	} {
		b.eval(fmt.Sprintf("localStorage.setItem('yodel-language', 'en'), localStorage.setItem('yodel-theme', %q)", picture.theme))
		b.open(base+picture.path, picture.want)
		b.waitFor("● 0 s") // the age of the data
		b.check(picture.name)
		shown := b.eval(looks)
		file := filepath.Join(folder, picture.name+".png")
		if *screenshots != "" {
			file = filepath.Join(*screenshots, picture.name+".png")
			b.picture(file, picture.height)
		}
		png, err := os.ReadFile(file)
		must(t, err)
		fmt.Fprintf(&made, "%s: page %x, picture %x\n", picture.name, sha256.Sum256([]byte(shown)), sha256.Sum256(png))
	}
	if *screenshots != "" {
		must(t, os.WriteFile(filepath.Join(*screenshots, "made.txt"), []byte(made.String()), 0o644))
		return
	}
	want, err := os.ReadFile(filepath.Join(folder, "made.txt"))
	must(t, err)
	if made.String() != string(want) {
		t.Errorf("the pictures in docs/images do not show the pages as they are: make them as the comment of this test says\ngot\n%swant\n%s", made.String(), want)
	}
}
