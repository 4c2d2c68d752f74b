// SPDX-License-Identifier: Apache-2.0

package serve

import "context"

// A Drain has what a server waits for when it shuts down.
type Drain[C lentConn, P pool] struct {
	ended []<-chan struct{} // one for its own connections, and one for each of conns
	conns []C
	pools []P
}

// Drain makes the lent connections refuse new requests. Empty is closed when the connections of the
// server itself have ended.
func (l *Lent[C, P]) Drain(empty <-chan struct{}) *Drain[C, P] {
	d := &Drain[C, P]{ended: []<-chan struct{}{empty}, conns: l.Conns()}
	for _, c := range d.conns {
		d.ended = append(d.ended, c.Refuse())
	}
	d.pools = l.Pools()
	return d
}

// Wait waits until all connections have ended and no request runs. It returns the cause of ctx if
// ctx ends first. Connections and requests that have already ended count, even if ctx has ended.
func (d *Drain[C, P]) Wait(ctx context.Context) error {
	if err := wait(ctx, d.ended); err != nil {
		return err
	}
	var settled []<-chan struct{} // for one-way calls, which may outlive their connections
	for _, p := range d.pools {
		settled = append(settled, p.Settled())
	}
	return wait(ctx, settled)
}

// CancelRequests ends the open requests of the lent connections.
func (d *Drain[C, P]) CancelRequests() {
	for _, c := range d.conns {
		c.CancelRequests()
	}
}

// End ends the requests that still run.
func (d *Drain[C, P]) End() {
	for _, p := range d.pools {
		p.Cancel()
	}
}

// wait waits until all channels are closed. It returns the cause of ctx if ctx ends first. A
// channel that is already closed counts even if ctx has ended.
func wait(ctx context.Context, channels []<-chan struct{}) error {
	for _, ch := range channels {
		select {
		case <-ch:
			continue
		default:
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
