// SPDX-License-Identifier: Apache-2.0

package h2

// workers are the goroutines of a connection that have run a handler and wait for the next. Their
// stacks have grown already, which takes a third of the processor time of a short handler. Conn.mu
// guards all of it.
type workers struct {
	idle  []chan *Stream // the last one is the first to be used
	least int            // the fewest that were idle since the last Tick
}

// mostIdle bounds the idle goroutines of a connection. With more, a client that resets requests
// makes a server hold much more memory than its requests take.
const mostIdle = 64

// startLocked runs the handler of a stream in the table on a goroutine.
func (c *Conn) startLocked(s *Stream) {
	s.started, s.handling = true, true
	w := &c.workers
	if n := len(w.idle) - 1; n >= 0 {
		w.idle[n] <- s
		w.idle = w.idle[:n]
		w.least = min(w.least, n)
		return
	}
	c.ended.Add(1)
	go c.work(s)
}

// work runs handlers until the connection has ended, or enough goroutines are idle.
func (c *Conn) work(s *Stream) {
	defer c.ended.Done()
	next := make(chan *Stream, 1)
	for s != nil {
		c.serve(s)
		c.mu.Lock()
		if c.life.over || len(c.workers.idle) >= mostIdle {
			c.mu.Unlock()
			return
		}
		c.workers.idle = append(c.workers.idle, next)
		c.mu.Unlock()
		s = <-next
	}
}

// serve runs a handler. It also ends the stream of one that has ended its goroutine.
func (c *Conn) serve(s *Stream) {
	defer c.returned(s)
	c.cfg.Handler.Serve(s)
}

// trimLocked ends goroutines that were idle since the last Tick, or all.
func (w *workers) trimLocked(all bool) {
	n := w.least
	if all {
		n = len(w.idle)
	}
	for _, next := range w.idle[:n] {
		close(next)
	}
	w.idle = append(w.idle[:0], w.idle[n:]...)
	w.least = len(w.idle)
}
