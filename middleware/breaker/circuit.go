// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/internal/aside"
	"github.com/yodel-rpc/yodel/middleware/internal/patience"
	"github.com/yodel-rpc/yodel/middleware/internal/spell"
)

// A circuit is the breaker of an endpoint. A successful call through a closed breaker takes no
// lock. Everything else takes mu.
type circuit struct {
	ep   *yodel.Endpoint
	name string
	born time.Time

	// word holds the state, and above it a number that changes with each state. An outcome of a
	// call that began in an earlier state is ignored.
	word  atomic.Uint64
	row   atomic.Int64 // failures in a row
	goods atomic.Int64 // successes that the window does not include yet
	times patience.Times

	mu     sync.Mutex
	window window
	opened int           // how often it has opened in a row
	about  time.Duration // how long it is open, or was last, before the random part
	lasts  time.Duration // how long it is open with the random part
	until  time.Time     // when it becomes half open
	shut   time.Time     // when it closed
	left   int           // probes that may still begin
	later  bool          // a timer is set that lets more probes begin
	passed int           // probes that succeeded
	why    string

	changes []change // changes that OnChange has not received
	telling bool     // a goroutine is calling OnChange
}

// A change is one call of Options.OnChange.
type change struct {
	state, why string
	lasts      time.Duration
}

// changedLocked queues a change for OnChange. Tell delivers it after the lock is released.
func (c *circuit) changedLocked(p *Options, state, why string, lasts time.Duration) {
	if p.OnChange != nil {
		c.changes = append(c.changes, change{state, why, lasts})
	}
}

// tell calls OnChange for the queued changes, unless another goroutine is doing so.
func (c *circuit) tell(p *Options) {
	if p.OnChange == nil {
		return
	}
	for {
		c.mu.Lock()
		if c.telling || len(c.changes) == 0 {
			c.mu.Unlock()
			return
		}
		next := c.changes[0]
		c.changes, c.telling = c.changes[1:], true
		c.mu.Unlock()
		c.tellOne(p, next)
	}
}

func (c *circuit) tellOne(p *Options, next change) {
	// A panic of OnChange is in the log.
	_ = aside.Do("breaker.Options.OnChange", nil, func() { p.OnChange(c.ep, next.state, next.why, next.lasts) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.telling = false
}

const (
	closed uint64 = iota
	open
	halfOpen
)

const (
	stateMask = 3
	version   = stateMask + 1
)

type circuitKey struct{ name string }

func circuitOf(ep *yodel.Endpoint, name string) *circuit {
	return ep.State(circuitKey{name}, func() any { return &circuit{ep: ep, name: name, born: time.Now()} }).(*circuit) //nolint:forcetypeassert // nobody else has the key
}

// clock returns the time since the circuit was created. It costs half as much as time.Now.
func (c *circuit) clock() time.Duration { return time.Since(c.born) }

// lookEvery is how many successes share one reading of the clock.
const lookEvery = 64

// succeeded records a success while the breaker is closed.
func (c *circuit) succeeded(p *Options) {
	if c.row.Load() != 0 {
		c.row.Store(0)
	}
	if p.Share > 0 && c.goods.Add(1)%lookEvery == 0 {
		c.mu.Lock()
		c.window.look(p.Window, c.clock(), c.goods.Swap(0))
		c.mu.Unlock()
	}
}

// ended records the outcome of a call that began while the state was word.
func (c *circuit) ended(p *Options, word uint64, o outcome, err error) {
	if word&stateMask == closed && o != bad {
		if o == good && c.word.Load() == word {
			c.succeeded(p)
		}
		return
	}
	defer c.tell(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.word.Load() != word {
		return
	}
	switch {
	case word&stateMask == closed:
		c.failedLocked(p, err)
	case o == bad:
		c.openLocked(p, fmt.Sprintf("a probe failed: %s", text(err)))
	case o == neither:
		c.left = min(c.left+1, p.Probes)
		c.ep.SetReady(c.name, true)
	default:
		if c.passed++; c.passed >= p.Probes {
			c.closeLocked(p)
		}
	}
}

// failedLocked records a failure while the breaker is closed.
func (c *circuit) failedLocked(p *Options, err error) {
	if n := c.row.Add(1); p.Errors > 0 && n >= int64(p.Errors) {
		c.openLocked(p, fmt.Sprintf("%d calls in a row failed, the last one: %s", n, text(err)))
		return
	}
	if p.Share == 0 {
		return
	}
	w := &c.window
	w.look(p.Window, c.clock(), c.goods.Swap(0))
	w.fail()
	const rounding = 1e-6
	if goods, bads := w.sum(); goods+bads+rounding >= float64(p.MinCalls) && bads+rounding >= p.Share*(goods+bads) {
		c.openLocked(p, fmt.Sprintf("%.0f of %.0f calls within %v failed, the last one: %s", bads, goods+bads, p.Window, text(err)))
	}
}

// text returns the text of err for the message of a refusal.
func text(err error) string {
	const longest = 80
	if err == nil {
		return "it was slow"
	}
	s := []rune(err.Error())
	if len(s) > longest {
		return string(s[:longest]) + "…"
	}
	return string(s)
}

// turnLocked changes the state.
func (c *circuit) turnLocked(state uint64) uint64 {
	word := c.word.Load()&^stateMask + version + state
	c.word.Store(word)
	return word
}

// openLocked opens the breaker, and sets the timer that makes it half open.
func (c *circuit) openLocked(p *Options, why string) {
	now := time.Now()
	if c.word.Load()&stateMask == closed && now.Sub(c.shut) >= c.about {
		c.opened = 0
	}
	c.about, c.lasts = spell.After(c.opened, p.Open, p.MaxOpen)
	c.opened++
	c.until, c.why = now.Add(c.lasts), why
	word := c.turnLocked(open)
	c.changedLocked(p, "open", why, c.lasts)
	c.note("ejected", fmt.Sprintf("%s; it is tried again in %v", why, c.lasts.Round(time.Millisecond)))
	c.ep.SetReady(c.name, false)
	time.AfterFunc(c.lasts, func() { c.probe(p, word) })
}

// probe makes the breaker half open if its state is still word, or lets more probes begin.
func (c *circuit) probe(p *Options, word uint64) {
	defer c.tell(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.word.Load() != word {
		return
	}
	if word&stateMask == open {
		c.turnLocked(halfOpen)
		c.changedLocked(p, "half-open", "", 0)
		c.passed = 0
	}
	c.left, c.later = p.Probes, false
	c.ep.SetReady(c.name, true)
}

func (c *circuit) closeLocked(p *Options) {
	c.changedLocked(p, "closed", "", 0)
	c.turnLocked(closed)
	c.shut = time.Now()
	c.row.Store(0)
	c.goods.Store(0)
	c.window = window{}
	c.ep.SetReady(c.name, true)
	c.note("readmitted", "its probes succeeded")
}

// note adds an event to the live data of the process.
func (c *circuit) note(kind, what string) {
	c.ep.Client().Note(introspect.Event{Kind: kind, Object: c.ep.Addr(), What: what, By: c.name})
}

// admit lets a call through or refuses it. It returns the state that the outcome counts for.
func (c *circuit) admit(p *Options, call *yodel.Call) (uint64, error) {
	if word := c.word.Load(); word&stateMask == closed {
		return word, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	word := c.word.Load()
	switch {
	case word&stateMask == closed:
		return word, nil
	case word&stateMask == open:
		return 0, c.refuse(call, fmt.Sprintf("is open for %v more", max(time.Until(c.until), 0).Round(time.Millisecond)))
	case c.left == 0:
		return 0, c.refuse(call, "is half open, and its probes have not ended yet")
	case call.OneWay: // a one-way call cannot be a probe, and there may be no other calls
		return word, nil
	}
	if c.left--; c.left == 0 {
		c.ep.SetReady(c.name, false)
		if !c.later {
			c.later = true
			time.AfterFunc(c.lasts, func() { c.probe(p, word) })
		}
	}
	call.Note(c.name, "half open; this attempt is a probe of "+c.ep.Addr())
	return word, nil
}

// refuse returns the error of a call that is not let through.
func (c *circuit) refuse(call *yodel.Call, state string) error {
	return &yodel.Error{
		Code: yodel.Unavailable, ID: "YDL1301", NotProcessed: true,
		Message: fmt.Sprintf("%s: %s: the breaker %s: %s", call.Method, c.ep.Addr(), state, c.why),
	}
}
