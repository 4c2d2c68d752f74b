// SPDX-License-Identifier: Apache-2.0

package session

import "time"

const (
	// quietTime is how long a connection without open calls lasts while the server drains, or an
	// eighth of the drain if that is less, which is before its first pause. It is twice the period
	// in which Linux counts the processor time of a container: a client that has used up its share
	// stands still for nearly one.
	quietTime = 200 * time.Millisecond
	// lingerTime is how long the client of a paused connection may take to notice its end.
	lingerTime = time.Second
)

// Draining returns a channel that is closed when Drain is called.
func (c *Conn) Draining() <-chan struct{} { return c.draining }

// Drain ends reading once no call has been open for quietTime, or no call is open while reading
// pauses. It returns then, when the session has ended, and when the connection has turned out to be
// native. It leaves a connection that was taken to the code that has taken it. End is when the
// server will close the connection; zero means never.
func (c *Conn) Drain(end time.Time) {
	c.drainOnce.Do(func() {
		close(c.draining)
		if warn := c.takeWarn(); warn != nil {
			go warn()
		}
		if c.nc == nil { // there is no client to inform
			return
		}
		defer c.drainTaken()
		defer c.pause(false)
		still := quietTime
		if !end.IsZero() {
			still = min(still, time.Until(end)/8)
		}
		for pauses := newPauses(end); ; {
			quiet, changed := c.nextCheck(still)
			if changed == nil {
				return
			}
			select {
			case <-changed:
			case <-c.ctx.Done():
				return
			case <-pauses.turn:
				c.pause(pauses.next())
			case <-quiet:
				unread, _ := c.o.Look(c.nc)
				if c.stopReading(unread) {
					return
				}
			}
		}
	})
}

// drainTaken tells the code that has taken the connection to drain it.
func (c *Conn) drainTaken() {
	c.mu.Lock()
	drain := c.onDrain
	c.mu.Unlock()
	if drain != nil {
		drain()
	}
}

// nextCheck returns when to stop reading, which is after still, and never while a call is open or a
// message arrives. The channel changed is closed when that may have changed. It is nil if the
// connection is native or was taken.
func (c *Conn) nextCheck(still time.Duration) (quiet <-chan time.Time, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.native || c.onDrain != nil {
		return nil, nil
	}
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	switch {
	case c.open > 0 || c.receiving:
	case c.waiting:
		quiet = time.After(0)
	default:
		quiet = time.After(still)
	}
	return quiet, c.changed
}

// pause makes Next wait, or ends its wait.
func (c *Conn) pause(begins bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused != nil {
		close(c.paused)
	}
	c.paused, c.waiting = nil, false
	if begins {
		c.paused = make(chan struct{})
	}
}

// stopReading makes the Reader return io.EOF, and returns true, unless a call has begun meanwhile,
// or there is something unread that the Reader will read when it has its turn on the processor.
// It closes only the sending half of a connection whose reading was paused: closing both while
// there are unread requests could discard replies on their way.
func (c *Conn) stopReading(unread bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.native || c.onDrain != nil || c.open > 0 || c.receiving || unread && !c.waiting {
		return false
	}
	c.quiet.Store(true)
	at := past
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok && c.waiting {
		c.mu.Unlock()
		if half.CloseWrite() == nil {
			at = time.Now().Add(lingerTime)
		}
		c.mu.Lock()
	}
	c.wakeLocked(at)
	return true
}
