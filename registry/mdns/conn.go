// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
)

// port and group are those of RFC 6762.
const port = 5353

var group = &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: port}

// A conn sends to and receives from the group, on some network interfaces.
type conn struct {
	packets *ipv4.PacketConn
	names   []string // of the interfaces that were asked for

	// also because an interface is chosen for the socket, not for a packet: not every system can do
	// that
	mu         sync.Mutex
	interfaces []net.Interface
	looked     time.Time // at what interfaces there are
}

// lookEvery is how often is looked at what interfaces there are: a laptop changes its network.
const lookEvery = 30 * time.Second

// open joins the group on the interfaces of these names, or on all that can.
func open(names []string) (*conn, error) {
	// A multicast address lets others listen at the port too: each process has a socket, and so has
	// every other program that speaks mDNS.
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(224, 0, 0, 0), Port: port})
	if err != nil {
		return nil, err
	}
	c := &conn{packets: ipv4.NewPacketConn(udp), names: names}
	_ = udp.SetReadBuffer(1 << 20)                            // many answer at once; it is a wish
	_ = c.packets.SetControlMessage(ipv4.FlagInterface, true) // not everywhere: see read
	err = errors.Join(c.packets.SetMulticastTTL(255), c.packets.SetMulticastLoopback(true), c.joinLocked())
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// joinLocked joins the group on the interfaces that have come, and forgets those that have gone.
func (c *conn) joinLocked() error {
	c.looked = time.Now()
	chosen, err := choose(c.names)
	if err != nil {
		return err
	}
	var joined []net.Interface
	for _, in := range chosen {
		if !c.takesPartLocked(in.Index) {
			if failed := c.packets.JoinGroup(&in, group); failed != nil {
				err = errors.Join(err, fmt.Errorf("join the group on %s: %w", in.Name, failed))
				continue
			}
		}
		joined = append(joined, in)
	}
	c.interfaces = joined
	switch {
	case len(joined) == 0:
		return errors.Join(err, errors.New("no network interface takes part"))
	case len(c.names) > 0:
		return err
	}
	return nil // some can, and that is what was asked for
}

func choose(names []string) ([]net.Interface, error) {
	var chosen []net.Interface
	for _, name := range names {
		in, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		chosen = append(chosen, *in)
	}
	if len(names) > 0 {
		return chosen, nil
	}
	all, err := net.Interfaces()
	for _, in := range all {
		if in.Flags&net.FlagUp != 0 && in.Flags&net.FlagMulticast != 0 {
			chosen = append(chosen, in)
		}
	}
	return chosen, err
}

func (c *conn) close() { _ = c.packets.Close() } // nothing is buffered

// send sends a message to the group. It fails if no interface took it.
func (c *conn) send(m *dns.Msg) error {
	packet, err := m.Pack()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) > lookEvery {
		if err = c.joinLocked(); err != nil {
			return err
		}
	}
	sent := false
	for _, in := range c.interfaces {
		one := c.packets.SetMulticastInterface(&in)
		if one == nil {
			_, one = c.packets.WriteTo(packet, nil, group)
		}
		sent = sent || one == nil
		err = errors.Join(err, one)
	}
	if sent {
		return nil
	}
	return fmt.Errorf("send to the group: %w", err)
}

// read hands on what arrives, until the conn is closed or fails.
func (c *conn) read(handle func(*dns.Msg)) error {
	packet := make([]byte, 64<<10)
	for {
		n, about, from, err := c.packets.ReadFrom(packet)
		if err != nil {
			return err
		}
		m := new(dns.Msg)
		if about != nil && !c.takesPart(about.IfIndex) || m.Unpack(packet[:n]) != nil {
			continue
		}
		if at, ok := from.(*net.UDPAddr); m.Response && (!ok || at.Port != port) {
			continue // RFC 6762, section 6: it does not come from a responder
		}
		handle(m)
	}
}

func (c *conn) takesPart(index int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takesPartLocked(index)
}

func (c *conn) takesPartLocked(index int) bool {
	return slices.ContainsFunc(c.interfaces, func(in net.Interface) bool { return in.Index == index })
}

// follow reads beside the caller, who gets what arrives until ctx ends, and why that stopped.
func (c *conn) follow(ctx context.Context) (messages <-chan *dns.Msg, failed chan error) {
	out, why := make(chan *dns.Msg, 256), make(chan error, 1)
	go func() {
		defer close(why) // so that it can be waited for
		why <- c.read(func(m *dns.Msg) {
			select {
			case out <- m:
			case <-ctx.Done():
			}
		})
	}()
	return out, why
}

// seconds is the unit of a time to live. It is rounded up: a record lives as long as promised.
func seconds(d time.Duration) uint32 {
	return uint32(max(0, min((d+time.Second-1)/time.Second, 1<<31-1)))
}
