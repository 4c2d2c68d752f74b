// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// A minute is a portrait whose processes have the live data of one minute, which does not go on:
// 25 calls a second, of which one failed in each of the seconds 30 and 31.
type minute struct {
	portrait

	now time.Time
}

const secondsOfMinute = 60

func (m *minute) Read(ctx context.Context, names ...string) (*fleet.View, error) {
	v, err := m.portrait.Read(ctx, names...)
	for _, s := range v.Services {
		for _, in := range s.Instances {
			series := introspect.Series{Side: "server", Method: s.Name + ".Get", Peer: "web", Errors: map[string][]uint64{"internal": make([]uint64, secondsOfMinute+1)}}
			for i := range secondsOfMinute + 1 {
				calls := 0
				if in == s.Instances[0] {
					calls = 25
				}
				series.Calls = append(series.Calls, uint64(calls))
				series.P50 = append(series.P50, time.Millisecond)
				series.P90 = append(series.P90, 2*time.Millisecond)
				series.P99 = append(series.P99, 25*time.Millisecond)
				if calls > 0 && (i == 30 || i == 31) {
					series.Errors["internal"][i] = 1
				}
			}
			in.Live.Now, in.Live.Series = m.now, []introspect.Series{series}
			in.Live.Events = nil
		}
	}
	return v, err
}

// ends returns the times at the two ends of a chart's axis.
func (b *browser) ends(chart int) string {
	b.t.Helper()
	return b.value(fmt.Sprintf(`[...document.querySelectorAll(".charts figure")[%d].querySelectorAll("text.tick")].slice(3).map(t => t.textContent).join(" ")`, chart))
}

// steps returns how many steps the line of the calls that succeeded has.
func (b *browser) steps() int {
	b.t.Helper()
	return int(b.timing(`document.querySelector(".charts .line.good").getAttribute("points").split(" ").length`))
}

// drag drags the mouse over a chart from one part of its width to another.
func (b *browser) drag(chart int, from, to float64) {
	b.t.Helper()
	at := func(share float64) map[string]any {
		where := func(of string) float64 {
			return b.timing(fmt.Sprintf(`(r => %s)(document.querySelectorAll(".charts svg")[%d].getBoundingClientRect())`, of, chart))
		}
		return map[string]any{"x": where("r.left") + share*where("r.width"), "y": where("r.top + r.height / 2"), "button": "left", "buttons": 1, "clickCount": 1}
	}
	for _, one := range []struct {
		kind  string
		share float64
	}{{"mousePressed", from}, {"mouseMoved", (from + to) / 2}, {"mouseMoved", to}, {"mouseReleased", to}} {
		event := at(one.share)
		event["type"] = one.kind
		b.do("Input.dispatchMouseEvent", event, nil)
	}
}

// A drag over a chart zooms all charts of the page into that time, until the user wants the whole
// range again. The address has it, and the page is paused meanwhile.
func TestBrowserZoomsCharts(t *testing.T) {
	b := newBrowser(t)
	c := newConsole(t, &shop{registry: memory.New(nil)}, nil)
	now := time.Now().Truncate(time.Second)
	c.fleet.open = func(time.Duration) reader {
		return &minute{portrait{yodel.NewClient(discovery.Static(), nil)}, now}
	}
	base := serveConsole(t, c)
	b.enter(c, base, "shop.Pay")
	b.eval("localStorage.setItem('yodel-language', 'en')")
	b.open(base+"/services/shop.Cart", "drag to zoom in")
	if n := b.steps(); n != secondsOfMinute {
		t.Errorf("the chart has %d steps", n)
	}
	whole := b.ends(0)

	// Axes end close above the highest value, and few errors are above the axis.
	if top := b.value(`document.querySelectorAll(".charts text.tick")[2].textContent`); top != "30" {
		t.Errorf("the axis of 25 calls a second ends at %s", top)
	}
	zero := b.timing(`+document.querySelectorAll(".charts .grid")[0].getAttribute("y1")`)
	if errors := b.timing(`+document.querySelector(".charts .line.code0").getAttribute("points").split(/[ ,]/)[1]`); zero-errors < 2 {
		t.Errorf("errors of 1 a second are at %.1f, and zero is at %.1f", errors, zero)
	}

	b.drag(0, 0.4, 0.7)
	b.waitFor("Whole range")
	zoomed := b.ends(0)
	if zoomed == whole || b.ends(1) != zoomed {
		t.Errorf("the charts show %s and %s after a drag, and %s before", zoomed, b.ends(1), whole)
	}
	n := b.steps()
	if n < 10 || n > 30 {
		t.Errorf("the charts show %d steps of %d", n, secondsOfMinute)
	}
	b.waitFor("▶ paused at")
	b.check("zoomed")
	b.shoot("charts-zoomed")

	address := b.value("location.href")
	if !strings.Contains(address, "zoom=") {
		t.Errorf("the address is %s", address)
	}
	b.open(address, "Whole range") // a link that a colleague opens
	if b.ends(0) != zoomed || b.ends(1) != zoomed {
		t.Errorf("the link shows %s and %s, want %s", b.ends(0), b.ends(1), zoomed)
	}
	b.drag(1, 0.5, 0.9)
	eventually(t, "a second drag zooms further", func() bool { return b.steps() < n })
	b.click(".zoom button")
	eventually(t, "the charts show the whole range", func() bool { return b.steps() == secondsOfMinute })
	if b.ends(0) != whole || strings.Contains(b.value("location.href"), "zoom") {
		t.Errorf("the charts show %s at %s, want %s", b.ends(0), b.value("location.href"), whole)
	}
	b.waitFor("‖ Pause")

	b.open(base+"/services/shop.Cart?zoom=1000-2000", "is not kept any more")
	b.check("a time that is gone")
	b.eval("localStorage.setItem('yodel-language', 'zh')")
	b.open(base+"/services/shop.Cart?zoom=1000-2000", "所选时间的数据已不再保留")
	b.click(".zoom button")
	b.waitFor("拖动以放大")
}
